// Streams, events, buffers and the memory table, on which the overlap schedule of the layers above depends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/errors.h"
#include "tests/kernels/backends.h"

namespace speedrun::testing::stream_test {

using namespace std::chrono_literals;

class StreamTest : public ::testing::TestWithParam<const BackendFactory*> {
  protected:
    StreamTest()
        : backend_(GetParam()->make(1, false)),
          a_(device().create_stream("a")),
          b_(device().create_stream("b")) {}

    Device& device() { return *backend_.device; }
    void submit(Stream& stream, std::function<void()> work) { GetParam()->submit(stream, std::move(work)); }

    Backend backend_;
    std::unique_ptr<Stream> a_, b_;
};
INSTANTIATE_TEST_SUITE_P(Backends, StreamTest, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

// A task that blocks its stream until the test opens it, or for five seconds, so that a failing test ends.
class Gate {
  public:
    void open() { promise_.set_value(); }
    std::function<void()> task() {
        return [future = future_] {
            EXPECT_EQ(future.wait_for(5s), std::future_status::ready) << "gate never opened";
        };
    }

  private:
    std::promise<void> promise_;
    std::shared_future<void> future_ = promise_.get_future().share();
};

TEST_P(StreamTest, RunsInOrder) {
    std::vector<int> order;
    for (int i = 0; i < 1000; ++i) submit(*a_, [&order, i] { order.push_back(i); });
    a_->synchronize();
    ASSERT_EQ(order.size(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
    EXPECT_EQ(a_->name(), "a");
}

TEST_P(StreamTest, EnqueueReturnsImmediately) {
    Gate gate;
    std::atomic<bool> done = false;
    submit(*a_, gate.task());
    submit(*a_, [&] { done = true; });
    submit(*b_, [] {});
    b_->synchronize();  // would deadlock if b ran after a
    EXPECT_FALSE(done);
    gate.open();
    a_->synchronize();
    EXPECT_TRUE(done);
}

TEST_P(StreamTest, EventOrdersTwoStreams) {
    int value = 0, seen = -1;
    const auto event = device().create_event();
    for (int round = 1; round <= 100; ++round) {
        submit(*a_, [&value, round] { value = round; });
        a_->record(*event);
        b_->wait(*event);
        submit(*b_, [&] { seen = value; });
        b_->record(*event);
        a_->wait(*event);  // a must not write before b has read
        if (round % 10 == 0) {
            b_->synchronize();
            EXPECT_EQ(seen, round);
        }
    }
    a_->synchronize();
}

TEST_P(StreamTest, UnrecordedEventDoesNotBlock) {
    const auto event = device().create_event();
    EXPECT_TRUE(event->complete());
    event->synchronize();
    b_->wait(*event);
    bool ran = false;
    submit(*b_, [&] { ran = true; });
    b_->synchronize();
    EXPECT_TRUE(ran);
    const auto timed = device().create_event(EventKind::timed);
    EXPECT_EQ(timed->elapsed_ms_since(*timed), 0.0);
}

TEST_P(StreamTest, WaitUsesLatestPrecedingRecord) {
    Gate first, second;
    const auto event = device().create_event();
    submit(*a_, first.task());
    a_->record(*event);
    b_->wait(*event);  // waits for the first gate, in spite of later records
    submit(*a_, second.task());
    a_->record(*event);
    EXPECT_FALSE(event->complete());
    first.open();
    b_->synchronize();  // would deadlock if the wait meant the second record
    EXPECT_FALSE(event->complete());

    const auto c = device().create_stream("c");
    std::atomic<bool> passed = false;
    c->wait(*event);  // waits for the second gate
    submit(*c, [&] { passed = true; });
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(passed);
    second.open();
    c->synchronize();
    EXPECT_TRUE(passed);
    EXPECT_TRUE(event->complete());
}

TEST_P(StreamTest, EventMayBeDestroyedBeforeWait) {
    Gate gate;
    bool ran = false;
    submit(*a_, gate.task());
    {
        const auto event = device().create_event();
        a_->record(*event);
        b_->wait(*event);
    }
    submit(*b_, [&] { ran = true; });
    gate.open();
    b_->synchronize();
    EXPECT_TRUE(ran);
    a_->synchronize();
}

TEST_P(StreamTest, ElapsedTime) {
    const auto begin = device().create_event(EventKind::timed), end = device().create_event(EventKind::timed);
    a_->record(*begin);
    submit(*a_, [] { std::this_thread::sleep_for(20ms); });
    a_->record(*end);
    end->synchronize();
    EXPECT_GE(end->elapsed_ms_since(*begin), 19.0);
    EXPECT_LT(end->elapsed_ms_since(*begin), 5000.0);
}

TEST_P(StreamTest, OnlyTimedEventsMeasureTime) {
    const auto order = device().create_event(), timed = device().create_event(EventKind::timed);
    for (Event* event : {order.get(), timed.get()}) {
        a_->record(*event);
        event->synchronize();
    }
    EXPECT_THROW(timed->elapsed_ms_since(*order), Error);
    EXPECT_THROW(order->elapsed_ms_since(*timed), Error);
    EXPECT_EQ(timed->elapsed_ms_since(*timed), 0.0);
}

TEST_P(StreamTest, ErrorSkipsLaterWorkAndFiresItsEvents) {
    const auto event = device().create_event();
    bool skipped = true, other_ran = false, later_ran = false;
    submit(*a_, [] { throw std::runtime_error("first"); });
    submit(*a_, [&] {
        skipped = false;
        throw std::runtime_error("second");
    });
    a_->record(*event);
    b_->wait(*event);  // must not hang
    submit(*b_, [&] { other_ran = true; });
    b_->synchronize();
    EXPECT_TRUE(other_ran);
    try {
        a_->synchronize();
        ADD_FAILURE() << "the error was lost";
    } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "first");
    }
    EXPECT_TRUE(skipped);
    submit(*a_, [&] { later_ran = true; });  // after reporting, the stream continues
    a_->synchronize();
    EXPECT_TRUE(later_ran);
}

TEST_P(StreamTest, DestructionFinishesQueuedWork) {
    std::atomic<int> count = 0;
    for (int i = 0; i < 100; ++i) submit(*a_, [&] { ++count; });
    a_.reset();
    EXPECT_EQ(count, 100);
}

TEST_P(StreamTest, CopyBothWays) {
    std::vector<int> source(5000), destination(5000, -1);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int>(i * i);
    const auto bytes = static_cast<int64_t>(source.size() * sizeof(int));
    const Buffer buffer(device(), "ints", MemoryCategory::data, bytes);
    std::vector<int> fresh(5000, -1);
    device().copy(fresh.data(), buffer.data(), bytes, *a_);
    device().copy(buffer.data(), source.data(), bytes, *a_);
    device().copy(destination.data(), buffer.data(), bytes, *a_);
    a_->synchronize();
    EXPECT_EQ(destination, source);
    EXPECT_EQ(fresh, std::vector<int>(5000, 0)) << "buffers start as zeros";
}

TEST_P(StreamTest, BuffersAreInMemoryTable) {
    MemoryTable& table = device().memory();
    const int64_t before = table.total();
    {
        Buffer small(device(), "small", MemoryCategory::gradients, 100);
        Buffer large(device(), "large", MemoryCategory::gradients, 5 << 20);
        const Buffer empty(device(), "empty", MemoryCategory::data, 0);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 64, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % 64, 0u);
        EXPECT_EQ(table.total() - before, 100 + (5 << 20));
        EXPECT_EQ(table.total(MemoryCategory::gradients), 100 + (5 << 20));
        EXPECT_THAT(table.print(), HasSubstr("large"));

        void* const data = small.data();
        Buffer moved = std::move(small);
        EXPECT_EQ(moved.data(), data);
        EXPECT_EQ(moved.bytes(), 100);
        EXPECT_EQ(table.total() - before, 100 + (5 << 20)) << "a move allocates no memory";
        large = std::move(moved);  // releases the large one
        EXPECT_EQ(large.data(), data);
        EXPECT_EQ(table.total() - before, 100);
        Buffer& self = large;
        large = std::move(self);
        EXPECT_EQ(large.data(), data);
        EXPECT_THROW(large.tensor(DType::f32, {26}), Error);  // 104 bytes
        EXPECT_THROW(large.tensor(DType::f32, {25}, 4), Error);
        EXPECT_EQ(large.tensor(DType::f32, {25}).data, data);
    }
    EXPECT_EQ(table.total(), before);
}

TEST_P(StreamTest, DryDeviceAllocatesAndRunsNothing) {
    Backend dry = GetParam()->make(1, true);
    ASSERT_TRUE(dry.device->dry());
    const auto stream = dry.device->create_stream("dry");
    const Buffer buffer(*dry.device, "weights", MemoryCategory::parameters, int64_t{1} << 50);  // a petabyte
    const Buffer other(*dry.device, "gradients", MemoryCategory::gradients, 1);
    EXPECT_GE(static_cast<char*>(other.data()), static_cast<char*>(buffer.data()) + buffer.bytes());
    EXPECT_EQ(Buffer(*dry.device, "nothing", MemoryCategory::data, 0).data(), nullptr);
    EXPECT_EQ(dry.device->memory().total(MemoryCategory::parameters), int64_t{1} << 50);
    bool ran = false;
    submit(*stream, [&] { ran = true; });
    int host = 1;
    dry.device->copy(&host, nullptr, sizeof host, *stream);

    // Operations of a dry device also check sizes and count work.
    const Tensor x = buffer.tensor(DType::f32, {1 << 20, 1 << 10}),
                 w = buffer.tensor(DType::f32, {1 << 10, 1 << 10});
    dry.ops->matmul({.c = x, .a = x, .b = w}, *stream);
    EXPECT_EQ(dry.ops->flops(), int64_t{2} << 40);
    EXPECT_THROW(dry.ops->matmul({.c = x, .a = w, .b = x}, *stream), Error);
    const auto event = dry.device->create_event();
    stream->record(*event);
    stream->synchronize();
    EXPECT_FALSE(ran);
    EXPECT_EQ(host, 1);
}

struct Spans final : TraceSink {
    struct Span {
        std::string stream, label;
        int64_t begin, end;
        int tag;
    };
    std::mutex mutex;
    std::vector<Span> spans;
    void span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns,
              int tag) override {
        std::lock_guard lock(mutex);
        spans.push_back({stream, label, begin_ns, end_ns, tag});
    }
};

TEST_P(StreamTest, TraceHasEverySpan) {
    Spans sink;
    int source = 1, destination = 0;
    device().set_trace(&sink);
    // CUPTI reports copies and kernels with their own names, and no tags.
    const bool by_cupti = GetParam()->name == std::string("cuda") && device().trace_limits().empty();
    for (int i = 0; i < 3; ++i) {
        a_->set_trace_tag(10 + i);
        device().copy(&destination, &source, sizeof source, *a_);
    }
    a_->set_trace_tag(0);
    a_->synchronize();
    device().set_trace(nullptr);
    std::lock_guard lock(sink.mutex);
    ASSERT_EQ(sink.spans.size(), 3u);
    int64_t previous = 0;
    int tag = 10;
    for (const auto& span : sink.spans) {
        EXPECT_EQ(span.stream, "a");
        EXPECT_TRUE(by_cupti ? span.label.starts_with("copy ") : span.label == "copy") << span.label;
        EXPECT_EQ(span.tag, by_cupti ? 0 : tag++);
        EXPECT_GE(span.begin, previous);
        EXPECT_GE(span.end, span.begin);
        previous = span.end;
    }
}

}  // namespace speedrun::testing::stream_test
