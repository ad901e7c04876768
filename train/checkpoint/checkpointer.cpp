#include "train/checkpoint/checkpointer.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "kernels/cuda/device/gpu_interop.h"
#include "kernels/device/start_thread.h"
#include "train/comm/joint_check.h"

namespace speedrun {

namespace {

using Clock = std::chrono::steady_clock;

// Status letters that ranks exchange while they write.
constexpr char kBusy = 'b', kDone = 'd', kFailed = 'f';
// Interval of the messages between waiting ranks, short enough that none is taken for dead.
constexpr std::chrono::milliseconds kPatience{100};

double ms_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::chrono::nanoseconds time_of_this_thread() {
    timespec time = {};
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
        throw_internal("no CPU clock of this thread (errno {})", errno);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::string outcome_of(const std::function<CheckpointFile()>& write) {
    try {
        return kDone + to_text(write());
    } catch (const std::exception& error) {
        return kFailed + std::string(error.what());
    }
}

// Removes the folder if `work` throws.
void or_remove(FileSystem& system, const std::string& folder, const std::function<void()>& work) {
    try {
        work();
    } catch (...) {
        system.remove_folder(folder);
        throw;
    }
}

}  // namespace

void load_checkpoint(const CheckpointReader& reader, Runtime& runtime, RunState& state) {
    runtime.synchronize();
    std::vector<char> numbers;
    const auto load = [&](const std::vector<StatePiece>& pieces) {
        for (const StatePiece& piece : pieces) {
            numbers.resize(static_cast<size_t>(piece.values.bytes()));
            char* values = numbers.data();
            for (const Box& box : piece.boxes) {
                reader.read(piece.tensor.name, box, values);
                values += box.count() * size_of(piece.values.dtype);
            }
            runtime.device().copy(piece.values.data, numbers.data(), piece.values.bytes(), runtime.compute());
            runtime.compute().synchronize();
        }
    };
    ShardedState& sharded = state.state();
    for (const Bucket& bucket : sharded.layout().all()) load(state_pieces(sharded, bucket));
    load(state_pieces(sharded.scales()));
    state.finish_load(reader.info().step);
}

Checkpointer::Checkpointer(const Config& config, const Ranks& ranks, Runtime& runtime, RunState& state,
                           std::string run, Report report, const Options& options)
    : every_(config.checkpoint.every),
      keep_(config.checkpoint.keep),
      ranks_(ranks),
      runtime_(runtime),
      state_(state),
      run_(std::move(run)),
      report_(std::move(report)),
      system_(options.system ? *options.system : real_file_system()),
      max_fetched_(options.max_fetched),
      tensors_(checkpoint_tensors(state.table(), config.optimizers)) {
    const ShardedState& sharded = state.state();
    int64_t bytes = 0;
    const auto add = [&](const std::vector<StatePiece>& pieces) {
        for (const StatePiece& piece : pieces) {
            offset_.push_back(bytes);
            bytes += piece.values.bytes();
            pieces_.push_back(piece);
        }
    };
    std::vector<size_t> ends;  // end of each bucket's pieces
    for (const Bucket& bucket : sharded.layout().all()) {
        if (writes_bucket(ranks, bucket)) add(state_pieces(sharded, bucket));
        ends.push_back(pieces_.size());
    }
    if (ranks.first()) add(state_pieces(sharded.scales()));
    if (every_ > 0) {
        snapshot_ = HostBuffer(runtime.device(), bytes);
        plan_copies(ends);
    }
    staging_ = HostBuffer(runtime.device(), max_fetched_ * size_of(DType::f32));
    const auto clean = [this] {
        if (ranks_.first()) remove_unfinished(system_, run_);
    };
    if (ranks_.size() > 1)
        work_together(*ranks_.world(), clean);
    else
        clean();
}

void Checkpointer::plan_copies(const std::vector<size_t>& ends) {
    const auto copies = [this](size_t first, size_t end) {
        std::vector<HostCopy> all;
        for (size_t i = first; i < end; ++i)
            all.push_back({pieces_[i].values, snapshot_.as<char>() + offset_[i]});
        return all;
    };
    size_t first = 0;
    for (const size_t end : ends) copies_.buckets.push_back(copies(std::exchange(first, end), end));
    copies_.scales = copies(first, pieces_.size());
}

void Checkpointer::snapshot(int64_t steps) {
    const Clock::time_point begin = Clock::now();
    settle(true);  // frees the snapshot's memory
    wait_ms_ += std::min(ms_since(begin), state_.idle_ms());
    state_.snapshot(copies_);
    snapshot_steps_ = steps;
}

bool Checkpointer::collected(int64_t steps) {
    settle(false);
    return snapshot_steps_ == steps;
}

void Checkpointer::write_snapshot(CheckpointInfo info) {
    snapshot_steps_ = -1;
    settle(true);
    state_.await_snapshot();  // overlapped with the next step on the device
    begin(std::move(info));
    const int64_t step = info_.step;
    if (ranks_.size() > 1) {
        writing_ = start_task([this, step] { return write_from_snapshot(step); });
        set_urgent(is_deferred(writing_));
        return;
    }
    pending_ = false;  // no other rank to agree with: the thread commits the file
    commits_ = true;
    committing_ = start_task([this, step]() -> std::optional<double> {
        or_remove(system_, unfinished_folder(run_, step), [&] { info_.files = {write_from_snapshot(step)}; });
        return commit_and_time();
    });
    set_urgent(is_deferred(committing_));
}

double Checkpointer::commit_and_time() const {
    or_remove(system_, unfinished_folder(run_, info_.step),
              [this] { commit_checkpoint(system_, run_, info_, keep_); });
    return ms_since(began_);
}

void Checkpointer::begin(CheckpointInfo info) {
    info_ = std::move(info);
    info_.tensors = tensors_;
    saved_ = info_.step;
    pending_ = true;
    outcome_.clear();
    began_ = Clock::now();
    set_urgent(false);
}

void Checkpointer::save(CheckpointInfo info) {
    settle(true);
    const double saved = saved_ == info.step ? 1 : 0;  // only rank 0 detects a failed commit
    if ((ranks_.size() > 1 ? ranks_.world()->min(saved) : saved) > 0) return;
    state_.refresh_copies();
    runtime_.synchronize();
    begin(std::move(info));
    // Written on a thread, so that this one keeps signalling the other ranks that it is alive while the disk is slow.
    writing_ = start_task([this, step = info_.step] { return write_from_device(step); });
    settle(true);
}

void Checkpointer::finish() {
    settle(true);
    if (ranks_.size() == 1) return;
    for (const std::string& problem : ranks_.world()->all_gather(problem_)) {
        if (problem_.empty()) problem_ = problem;
    }
}

CheckpointFile Checkpointer::write_from_snapshot(int64_t step) {
    const std::chrono::nanoseconds began = time_of_this_thread();
    std::chrono::nanoseconds written = began;
    RankFileWriter writer(system_, run_, rank_file(step), pieces_);
    while (const std::optional<RankFileWriter::Chunk> chunk = writer.next()) {
        leave_cores_to_training(time_of_this_thread() - written);
        written = time_of_this_thread();
        const size_t i = chunk->piece;
        const int64_t first = chunk->elements.begin * size_of(pieces_[i].values.dtype);
        writer.write(snapshot_.as<char>() + offset_[i] + first);
    }
    const CheckpointFile file = writer.finish();
    core_ = time_of_this_thread() - began;
    return file;
}

// Hashing and writing take about 0.4 s of a core per gigabyte. On the CPU, training uses all cores and would wait for
// that one. The writer therefore uses 1/15 of a core, and a whole one as soon as a caller waits for it.
void Checkpointer::leave_cores_to_training(std::chrono::nanoseconds worked) {
    if (runtime_.device().kind() != DeviceKind::cpu) return;
    constexpr int kRests = 14;
    std::unique_lock lock(mutex_);
    urgent_changed_.wait_for(lock, kRests * worked, [this] { return urgent_; });
}

void Checkpointer::set_urgent(bool urgent) {
    {
        const std::lock_guard lock(mutex_);
        urgent_ = urgent;
    }
    urgent_changed_.notify_all();
}

CheckpointFile Checkpointer::write_from_device(int64_t step) {
    use_gpu(runtime_.device());  // sets the current device of this thread
    const std::chrono::nanoseconds began = time_of_this_thread();
    RankFileWriter writer(system_, run_, rank_file(step), pieces_);
    while (const std::optional<RankFileWriter::Chunk> chunk = writer.next()) {
        const Tensor values = elements(pieces_[chunk->piece].values, chunk->elements);
        runtime_.device().copy(staging_.as<void>(), values.data, values.bytes(), runtime_.copy());
        runtime_.copy().synchronize();
        writer.write(staging_.as<void>());
    }
    const CheckpointFile file = writer.finish();
    core_ = time_of_this_thread() - began;
    return file;
}

void Checkpointer::settle(bool wait) {
    if (wait) set_urgent(true);
    settle_commit(wait);
    // All-gather a status letter; when all are done, send file names and hashes to rank 0.
    while (pending_) {
        if (outcome_.empty() && can_get(writing_, wait ? kPatience : std::chrono::milliseconds(0)))
            outcome_ = outcome_of([this] { return writing_.get(); });
        const std::string own = outcome_.empty()            ? std::string{kBusy}
                                : outcome_.front() == kDone ? std::string{kDone}
                                                            : outcome_;
        const auto outcomes =
            ranks_.size() > 1 ? ranks_.world()->all_gather(own) : std::vector<std::string>{own};
        const auto is = [](char kind) { return [kind](const std::string& o) { return o.front() == kind; }; };
        if (std::any_of(outcomes.begin(), outcomes.end(), is(kBusy))) {
            if (wait) continue;
            return;
        }
        pending_ = false;
        commit(outcomes);
        settle_commit(wait);
    }
}

void Checkpointer::commit(const std::vector<std::string>& outcomes) {
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
        if (outcomes[rank].front() != kFailed) continue;
        const std::string who = ranks_.size() > 1 ? fmt::format("rank {}: ", rank) : "";
        if (ranks_.first()) {
            const auto remove = [this,
                                 folder = unfinished_folder(run_, info_.step)]() -> std::optional<double> {
                system_.remove_folder(folder);
                return std::nullopt;
            };
            committing_ = start_task(remove);
        }
        commits_ = true;
        return fail(who + outcomes[rank].substr(1));
    }
    const std::string own = outcome_.substr(1);
    for (const std::string& file : ranks_.size() > 1 ? ranks_.world()->gather(own) : std::vector{own})
        info_.files.push_back(checkpoint_file_from_text(file));
    commits_ = true;
    if (!ranks_.first()) return;
    committing_ = start_task([this] { return std::optional(commit_and_time()); });
}

// Rank 0 commits. The other ranks learn of its completion only here, with `wait`.
void Checkpointer::settle_commit(bool wait) {
    while (commits_) {
        if (committing_.valid() && can_get(committing_, wait ? kPatience : std::chrono::milliseconds(0)))
            end_commit();
        if (!wait) return;
        const double busy = committing_.valid() ? 1 : 0;
        commits_ = (ranks_.size() > 1 ? ranks_.world()->max(busy) : busy) > 0;
    }
}

void Checkpointer::end_commit() {
    try {
        const std::optional<double> ms = committing_.get();
        if (!ms) return;
        const auto add = [](int64_t sum, const CheckpointFile& file) { return sum + file.bytes; };
        const int64_t bytes = std::accumulate(info_.files.begin(), info_.files.end(), int64_t{0}, add);
        report_(
            fmt::format(
                "{}: {:.1f} MB from {} rank(s) on the disk after {:.1f} ms; this rank's took {:.1f} ms of a core",
                checkpoint_name(info_.step), static_cast<double>(bytes) * 1e-6, info_.files.size(), *ms,
                static_cast<double>(core_.count()) * 1e-6),
            false);
    } catch (const std::exception& error) {
        fail(error.what());
    }
}

void Checkpointer::fail(const std::string& text) {
    saved_ = -1;
    const std::string problem = fmt::format("{} could not be saved: {}", checkpoint_name(info_.step), text);
    if (problem_.empty()) problem_ = problem;
    report_(problem + "; earlier checkpoints are unchanged, training continues", true);
}

}  // namespace speedrun
