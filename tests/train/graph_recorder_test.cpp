// Recordings of one stream among others: what they do at each launch, and where they are cut.
#include "kernels/runtime/graph_recorder.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"

namespace speedrun::testing {
namespace {

class GraphRecorderTest : public ::testing::Test {
  protected:
    GraphRecorderTest() { device_.allow_graphs(true); }
    // Enqueues on a stream: the next letter of what has happened.
    void enqueue(Stream& stream, char letter) {
        static_cast<CpuStream&>(stream).submit("letter", [this, letter] { happened_ += letter; });
    }
    // On the other stream, between two events: compute goes on when it is done.
    void other_work(char letter) {
        compute_->record(*reached_);
        recorder_.on_others([this, letter] {
            other_->wait(*reached_);
            enqueue(*other_, letter);
            other_->record(*done_);
        });
    }
    std::string launch(const GraphRecorder::Recording& recording) {
        happened_.clear();
        recording.launch(*compute_);
        compute_->synchronize();
        other_->synchronize();
        return happened_;
    }

    CpuDevice device_{1};
    std::unique_ptr<Stream> compute_ = device_.create_stream("compute"),
                            other_ = device_.create_stream("other");
    std::unique_ptr<Event> reached_ = device_.create_event(), done_ = device_.create_event();
    GraphRecorder recorder_{device_, *compute_};
    std::string happened_;
};

TEST_F(GraphRecorderTest, RecordsInsteadOfDoing) {
    const auto recording = recorder_.record([&] {
        enqueue(*compute_, 'a');
        other_work('b');
    });
    compute_->synchronize();
    other_->synchronize();
    EXPECT_EQ(happened_, "");
    EXPECT_EQ(recording->num_graphs(), 1u) << "nothing waits for b";
    EXPECT_EQ(launch(*recording), "ab");
    EXPECT_EQ(launch(*recording), "ab");
}

// A graph waits for records that were enqueued before its launch: what waits for others begins a new one.
TEST_F(GraphRecorderTest, IsCutWhereComputeWaitsForOthers) {
    const auto recording = recorder_.record([&] {
        enqueue(*compute_, 'a');
        recorder_.await(*done_);  // of the launch before
        enqueue(*compute_, 'b');
        other_work('c');
        recorder_.await(*done_);
        enqueue(*compute_, 'd');
        recorder_.await(*done_);
        enqueue(*compute_, 'e');
        other_work('f');
        recorder_.await(*done_);
        enqueue(*compute_, 'g');
    });
    EXPECT_EQ(recording->num_graphs(), 3u);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(launch(*recording), "abcdefg");
}

TEST_F(GraphRecorderTest, WithoutRecordingThingsHappenAtOnce) {
    enqueue(*compute_, 'a');
    other_work('b');
    recorder_.await(*done_);
    enqueue(*compute_, 'c');
    compute_->synchronize();
    EXPECT_EQ(happened_, "abc");
}

TEST_F(GraphRecorderTest, WhatTheBodyThrowsEndsTheRecording) {
    EXPECT_THROW(recorder_.record([&] {
        other_work('a');
        recorder_.await(*done_);
        throw_data("no more tokens");
    }),
                 Error);
    EXPECT_THROW(recorder_.record([&] { compute_->synchronize(); }), Error) << "a stream that records";
    enqueue(*compute_, 'b');
    compute_->synchronize();
    EXPECT_EQ(happened_, "b");
    const auto recording = recorder_.record([&] { enqueue(*compute_, 'c'); });
    EXPECT_EQ(launch(*recording), "c");
}

TEST_F(GraphRecorderTest, DevicesThatRecordNothingSaySo) {
    device_.allow_graphs(false);
    EXPECT_FALSE(recorder_.record([] { FAIL() << "it was run"; }));
    EXPECT_FALSE(device_.record_graph(*compute_, [] { FAIL() << "it was run"; }));
    EXPECT_THROW(device_.Device::end_graph(*compute_), Error);
}

}  // namespace
}  // namespace speedrun::testing
