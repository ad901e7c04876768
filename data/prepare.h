// Converts text files to a dataset folder: token shards and dataset.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace speedrun {

struct PrepareOptions {
    std::vector<std::string> inputs;  // text files, in order of documents
    std::string tokenizer = "bytes";  // see make_tokenizer
    std::string vocabulary;           // vocabulary file, copied into out_dir; empty: not needed
    std::string out_dir;              // created if absent
    std::string name;                 // name of the dataset; empty: last component of out_dir
    int64_t val_every = 0;            // document K, 2K, … (from 1) is validation; 0 = no validation split
    std::string document_marker;      // a line equal to this ends a document; empty = one document per file
    int64_t shard_tokens = 100'000'000;  // tokens per shard file; the last shard of a split has the rest
    bool force = false;                  // replace an existing dataset in out_dir
    bool quiet = false;                  // no summary on stdout
    // folder of a dataset to check instead (the command's --verify), see verify.h
    std::string verify;
};

struct SplitSummary {
    int64_t documents = 0;
    int64_t tokens = 0;  // including separators
};

struct PrepareSummary {
    SplitSummary train, val;
    DatasetInfo info;  // as written to dataset.json
};

// Writes train_000000.bin …, val_000000.bin … and dataset.json into out_dir, and the vocabulary if there is one. Each
// document is its text (with its last newline) followed by the separator token; empty documents are skipped. A document
// may continue in the next shard. Memory: one document and one shard.
//
// All files are first written into out_dir/.staging, so a failure leaves out_dir unchanged. Throws a usage error for
// bad options, or if out_dir has a dataset and force is not set. Throws a data error if an input cannot be read or a
// requested split would be empty.
PrepareSummary prepare_dataset(const PrepareOptions& options);

}  // namespace speedrun
