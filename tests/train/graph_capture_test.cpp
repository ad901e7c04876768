// Capture of one stream with work on other streams: effects of each launch, and the points where a graph is split.
// Covers: kernels/device/graph.cpp
#include "kernels/runtime/graph_capture.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "kernels/runtime/section_graphs.h"

namespace speedrun::testing::graph_capture_test {

class GraphCaptureTest : public ::testing::Test {
  protected:
    GraphCaptureTest() { device_.allow_graphs(true); }
    static constexpr char kAwait = '-';  // compute waits for the other stream

    // Enqueues a task that appends this letter to happened_.
    void enqueue(Stream& stream, char letter) {
        static_cast<CpuStream&>(stream).submit("letter", [this, letter] { happened_ += letter; });
    }
    // Enqueues work on the other stream after the event `reached_`; `done_` is recorded after it.
    void other_work(char letter) {
        compute_->record(*reached_);
        if (!capture_.record(letter)) run(letter);
    }
    void await_done() {
        if (!capture_.record_wait(kAwait)) run(kAwait);
    }
    void run(char work) {
        if (work == kAwait) return compute_->wait(*done_);
        other_->wait(*reached_);
        enqueue(*other_, work);
        other_->record(*done_);
    }
    std::string launch(const CapturedGraphs<char>& captured) {
        happened_.clear();
        for (const auto& part : captured.parts) {
            part.graph->launch(*compute_);
            for (const char work : part.others) run(work);
        }
        compute_->synchronize();
        other_->synchronize();
        return happened_;
    }

    CpuDevice device_{1};
    std::unique_ptr<Stream> compute_ = device_.create_stream("compute"),
                            other_ = device_.create_stream("other");
    std::unique_ptr<Event> reached_ = device_.create_event(), done_ = device_.create_event();
    GraphCapture<char> capture_{device_, *compute_};
    std::string happened_;
};

TEST_F(GraphCaptureTest, RecordsWithoutExecuting) {
    const auto captured = capture_.capture([&] {
        enqueue(*compute_, 'a');
        other_work('b');
    });
    compute_->synchronize();
    other_->synchronize();
    EXPECT_EQ(happened_, "");
    EXPECT_EQ(captured->parts.size(), 1u) << "nothing waits for b";
    EXPECT_EQ(launch(*captured), "ab");
    EXPECT_EQ(launch(*captured), "ab");
}

// A graph can only wait for events recorded before its launch, so a wait for another stream starts a new graph.
TEST_F(GraphCaptureTest, SplitsGraphAtStreamWaits) {
    const auto captured = capture_.capture([&] {
        enqueue(*compute_, 'a');
        await_done();  // waits for the previous launch
        enqueue(*compute_, 'b');
        other_work('c');
        await_done();
        enqueue(*compute_, 'd');
        await_done();
        enqueue(*compute_, 'e');
        other_work('f');
        await_done();
        enqueue(*compute_, 'g');
    });
    EXPECT_EQ(captured->parts.size(), 3u);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(launch(*captured), "abcdefg");
}

TEST_F(GraphCaptureTest, ExecutesImmediatelyWithoutCapture) {
    enqueue(*compute_, 'a');
    other_work('b');
    await_done();
    enqueue(*compute_, 'c');
    compute_->synchronize();
    EXPECT_EQ(happened_, "abc");
}

TEST_F(GraphCaptureTest, ExceptionEndsCapture) {
    EXPECT_THROW(capture_.capture([&] {
        other_work('a');
        await_done();
        throw_data("no more tokens");
    }),
                 Error);
    EXPECT_THROW(capture_.capture([&] { compute_->synchronize(); }), Error) << "a stream that is captured";
    enqueue(*compute_, 'b');
    compute_->synchronize();
    EXPECT_EQ(happened_, "b");
    const auto captured = capture_.capture([&] { enqueue(*compute_, 'c'); });
    EXPECT_EQ(launch(*captured), "c");
}

// A captured section runs its graph, with what it read at the capture, and others run call by call. A section of a section
// belongs to its graph.
TEST_F(GraphCaptureTest, SectionsRunTheirGraphs) {
    SectionGraphs sections(device_, *compute_);
    char letter = 'a';
    const auto run = [&] {
        happened_.clear();
        sections.run({1}, [&] {
            enqueue(*compute_, letter);
            sections.run({2}, [&] { enqueue(*compute_, 'x'); });
        });
        sections.run({3}, [&] { enqueue(*compute_, letter); });
        compute_->synchronize();
        return happened_;
    };
    EXPECT_EQ(run(), "axa");
    happened_.clear();
    sections.capture([&] {
        sections.run({1}, [&] {
            enqueue(*compute_, letter);
            sections.run({2}, [&] { enqueue(*compute_, 'x'); });
        });
    });
    compute_->synchronize();
    EXPECT_EQ(happened_, "") << "a capture executes nothing";
    EXPECT_EQ(sections.size(), 1u);
    letter = 'b';
    EXPECT_EQ(run(), "axb");
    sections.use(false);
    EXPECT_EQ(run(), "bxb");
}

TEST_F(GraphCaptureTest, UnsupportedDeviceReturnsNull) {
    device_.allow_graphs(false);
    EXPECT_FALSE(capture_.capture([] { FAIL() << "it was run"; }));
    EXPECT_FALSE(device_.capture_graph(*compute_, [] { FAIL() << "it was run"; }));
    EXPECT_THROW(device_.Device::end_graph(*compute_), Error);
}

}  // namespace speedrun::testing::graph_capture_test
