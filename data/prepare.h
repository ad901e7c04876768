// Text files to a dataset folder: token shards and dataset.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace speedrun {

struct PrepareOptions {
    std::vector<std::string> inputs;  // text files, in the order of the documents
    std::string tokenizer = "bytes";  // see make_tokenizer
    std::string vocabulary;           // its file, copied into out_dir; empty: it needs none
    std::string out_dir;              // created if absent
    std::string name;                 // of the dataset; empty = the last part of out_dir
    int64_t val_every = 0;            // document K, 2K, … (from 1) is validation; 0 = no validation split
    std::string document_marker;      // a line equal to this ends a document; empty = one document per file
    int64_t shard_tokens = 100'000'000;  // tokens per shard file, the last of a split has the rest
    bool force = false;                  // replace a dataset that is already in out_dir
    bool quiet = false;                  // no summary on stdout
    std::string verify;                  // the command: check this dataset instead, see verify.h
};

struct SplitSummary {
    int64_t documents = 0;
    int64_t tokens = 0;  // separators included
};

struct PrepareSummary {
    SplitSummary train, val;
    DatasetInfo info;  // as written to dataset.json
};

// Writes train_000000.bin …, val_000000.bin … and dataset.json into out_dir, with the vocabulary if there is
// one. Each document is its text (with its last newline) followed by the separator token; empty documents are
// left out. A document may run on from one shard into the next. Memory: one document and one shard.
//
// Everything is written into out_dir/.staging first: a failure leaves what was in out_dir as it was. Throws a
// usage error for bad options and where out_dir holds a dataset already and force is not set; a data error if
// an input cannot be read, or a split that was asked for would be empty.
PrepareSummary prepare_dataset(const PrepareOptions& options);

}  // namespace speedrun
