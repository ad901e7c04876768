#include "train/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "train/checkpoint/safetensors.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& run) {
    return run + "/checkpoints";
}

// Renames the unfinished folder. Replaces an existing folder, which is a damaged checkpoint of the same step.
void rename_folder(FileSystem& system, const std::string& unfinished, const std::string& folder) {
    std::error_code error;
    if (!fs::exists(folder, error)) {
        check_file(system.rename(unfinished, folder), unfinished, "renaming");
        return;
    }
    if (system.exchange(unfinished, folder) == 0) {
        // the replaced folder; if this fails, remove_unfinished() deletes it later
        system.remove_folder(unfinished);
        return;
    }
    check_file(system.remove_folder(folder), folder, "replacing it");
    check_file(system.rename(unfinished, folder), unfinished, "renaming");
}

// Only masters are checked: a resumed run would start from them. Non-finite optimizer state reaches the masters with
// the next step.
void expect_finite(const StatePiece& piece, const void* numbers, int64_t count) {
    if (!piece.tensor.name.starts_with("master/")) return;
    const auto check = [&](const auto* values) {
        if (std::all_of(values, values + count, [](float value) { return std::isfinite(value); })) return;
        throw Error(
            ExitCode::diverged,
            fmt::format("{} holds numbers that are not finite: the run has diverged", piece.tensor.name));
    };
    if (piece.tensor.dtype == DType::bf16)
        check(static_cast<const Bf16*>(numbers));
    else
        check(static_cast<const float*>(numbers));
}

std::string made_folder(FileSystem& system, const std::string& run, int64_t step) {
    std::string folder = unfinished_folder(run, step);
    check_file(system.make_folder(folder_of(run)), folder_of(run), "making the folder");
    check_file(system.make_folder(folder), folder, "making the folder");
    return folder;
}

}  // namespace

std::string unfinished_folder(const std::string& run, int64_t step) {
    return folder_of(run) + "/." + checkpoint_name(step) + ".part";
}

RankFileWriter::RankFileWriter(FileSystem& system, const std::string& run, RankFile which,
                               const std::vector<StatePiece>& pieces)
    : system_(system),
      pieces_(pieces),
      folder_(made_folder(system, run, which.step)),
      most_(which.max_fetched),
      result_{rank_file_name(which.rank), 0, {}, {}},
      file_(system, folder_ + "/" + result_.name) {
    std::vector<TensorEntry> entries;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const auto& [name, shape, dtype] = pieces[i].tensor;
        int64_t begin = 0;
        for (const Box& box : pieces[i].boxes) {
            entries.push_back({piece_name(name, shape, box), dtype, piece_shape(shape, box)});
            parts_.push_back({i, {begin, box.count()}, entries.back().name});
            begin += box.count();
        }
    }
    const std::string header = safetensors_header(entries);
    file_.write(header.data(), header.size());
    add_sum(sums_, file_.xxh128(), kHeaderSum);
}

std::optional<RankFileWriter::Chunk> RankFileWriter::next() const {
    if (part_ == parts_.size()) return std::nullopt;
    const Part& part = parts_[part_];
    return Chunk{part.piece, {first_, std::min(most_, part.elements.end() - first_)}};
}

void RankFileWriter::write(const void* numbers) {
    const Part& part = parts_[part_];
    const StatePiece& piece = pieces_[part.piece];
    const int64_t count = std::min(most_, part.elements.end() - first_);
    expect_finite(piece, numbers, count);
    file_.write(numbers, static_cast<size_t>(count * size_of(piece.tensor.dtype)));
    first_ += count;
    if (first_ < part.elements.end()) return;
    add_sum(sums_, file_.xxh128(), part.name);
    if (++part_ < parts_.size()) first_ = parts_[part_].elements.begin;
}

CheckpointFile RankFileWriter::finish() {
    result_.bytes = file_.bytes();
    result_.xxh128 = file_.finish();
    result_.sums_xxh128 = write_durable(system_, folder_ + "/" + sums_file_name(result_.name), sums_);
    check_file(system_.sync_folder(folder_), folder_, "syncing to disk");
    return result_;
}

void commit_checkpoint(FileSystem& system, const std::string& run, const CheckpointInfo& info, int64_t keep) {
    const std::string unfinished = unfinished_folder(run, info.step);
    write_checkpoint_info(system, unfinished, info);
    check_file(system.sync_folder(unfinished), unfinished, "syncing to disk");
    rename_folder(system, unfinished, folder_of(run) + "/" + checkpoint_name(info.step));
    check_file(system.sync_folder(folder_of(run)), folder_of(run), "syncing to disk");
    // Checkpoints of later steps are damaged, because the run continued from an earlier one. They do not count.
    for (const std::string& folder : list_checkpoints(run)) {
        if (step_of_checkpoint(fs::path(folder).filename().string()) > info.step) continue;
        if (--keep < 0) check_file(system.remove_folder(folder), folder, "deleting");
    }
}

void remove_unfinished(FileSystem& system, const std::string& run) {
    std::vector<std::string> leftovers;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_of(run), error)) {
        const std::string name = entry.path().filename().string();
        if (name.rfind(".step-", 0) == 0) leftovers.push_back(entry.path().string());
    }
    for (const std::string& folder : leftovers) check_file(system.remove_folder(folder), folder, "deleting");
}

}  // namespace speedrun
