#include "train/commands/prepare_cli.h"

#include <CLI/CLI.hpp>

namespace speedrun {

CLI::App* add_prepare(CLI::App& app, PrepareOptions& options) {
    CLI::App* const command = app.add_subcommand("prepare", "turn text files into token shards");
    command->add_option("--input", options.inputs,
                        "text (.txt), JSON Lines (.jsonl), both also as .gz and .zst; folders; patterns");
    command->add_option("--input-list", options.input_list, "file with an input per line")->type_name("FILE");
    command->add_option("--document-marker", options.document_marker,
                        "a line equal to this ends a document; default: each text file is a document");
    command->add_option(
        "--json-key", options.json_key,
        "key of the text in JSON Lines: .jsonl, with this option all but .txt; default: text");
    command->add_option("--tokenizer", options.tokenizer,
                        "bytes, or gpt2; default: gpt2 with a vocabulary, else bytes");
    command->add_option("--vocab", options.vocabulary,
                        "tiktoken file, tokenizer.json, folder of vocab.json and merges.txt, or dataset");
    command
        ->add_option("--train-bpe", options.train_bpe,
                     "train a byte-level BPE vocabulary of N tokens on the inputs")
        ->type_name("N");
    command->add_option("--out", options.out_dir, "folder for shards and dataset.json");
    command->add_option("--name", options.name, "name of the dataset; default: the folder's");
    command->add_option("--val-every", options.val_every, "every K-th document is for validation; 0: none")
        ->capture_default_str();
    command->add_option("--val-fraction", options.val_fraction,
                        "the last part of the text is for validation, from a line or document; 0.1: a tenth");
    command->add_option("--shard-tokens", options.shard_tokens, "tokens per shard file")
        ->capture_default_str();
    command->add_flag("--force", options.force, "replace a dataset that is there");
    command
        ->add_option("--verify", options.verify,
                     "instead: check all files of this dataset against their hashes")
        ->type_name("DIR");
    return command;
}

}  // namespace speedrun
