// Converts text files to a dataset folder: token shards and dataset.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset_writer.h"

namespace speedrun {

struct PrepareOptions {
    std::vector<std::string> inputs;  // in order of documents: files, folders, patterns (see input_files.h)
    std::string input_list;           // file with more inputs; empty: none
    std::string document_marker;      // a line equal to this ends a document; empty: one document per file
    std::string json_key;             // see DocumentFormat
    std::string tokenizer;   // see make_tokenizer; empty: bytes, or gpt2 with a vocabulary or train_bpe
    std::string vocabulary;  // see read_bpe_vocabulary, stored in out_dir; empty: not needed
    std::optional<int64_t> train_bpe{};  // tokens of a vocabulary that is trained on the documents
    std::string out_dir;                 // created if absent
    std::string name;                    // name of the dataset; empty: last component of out_dir
    int64_t val_every = 0;               // document K, 2K, … (from 1) is validation; 0: none
    double val_fraction = 0;             // share of the text, at its end, for validation; 0: none
    int64_t shard_tokens = 100'000'000;  // tokens per shard file; the last shard of a split has the rest
    bool force = false;                  // replace an existing dataset in out_dir
    bool quiet = false;                  // no summary on stdout, no warnings on stderr
    // folder of a dataset to check instead (the command's --verify), see verify.h
    std::string verify;
};

struct PrepareSummary {
    SplitSummary train, val;
    DatasetInfo info;  // as written to dataset.json
};

// Writes train_000000.bin …, val_000000.bin … and dataset.json into out_dir, and the vocabulary if there is one. A
// trained vocabulary is also written as tokenizer.json. Each document is its text (with its last newline) followed by the
// separator token; empty documents are skipped. A document may continue in the next shard. Inputs are read once; twice
// for val_fraction and train_bpe. Memory: parts of documents, not documents or shards; for train_bpe see PieceCounts.
//
// val_fraction holds out the documents that begin in this share of all text, which is at the end of the inputs. A
// document that is a whole text file is cut at its first line end there.
//
// All files are first written into out_dir/.staging, so a failure leaves out_dir unchanged. Throws a usage error for
// bad options, or if out_dir has a dataset and force is not set. Throws a data error if an input cannot be read, if the
// marker never occurs, or if a requested split would be empty.
PrepareSummary prepare_dataset(const PrepareOptions& options);

}  // namespace speedrun
