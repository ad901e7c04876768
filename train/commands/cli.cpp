#include "train/commands/cli.h"

#include <CLI/CLI.hpp>

#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/commands/eval.h"
#include "train/commands/findings.h"
#include "train/commands/option_values.h"
#include "train/commands/prepare_cli.h"
#include "train/commands/records_cli.h"
#include "train/commands/sample.h"
#include "train/config/choices.h"

namespace speedrun {

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 unexpected failure; 2 bad usage or config; 3 data missing or damaged; 4 "
    "diverged;\n"
    "            5 a rank was lost; 128 + N stopped by signal N (HUP, INT, TERM, USR1, USR2, XCPU) after saving a "
    "checkpoint.";

void add_settings(CLI::App* command, std::vector<std::string>& settings) {
    command
        ->add_option("--set", settings,
                     "override one config key: dotted.key=value (JSON, else a string); repeatable")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);  // one value per flag: later arguments are not settings
}

void add_alone(CLI::App* command, bool& alone) {
    command->add_flag("--alone", alone, "train on one rank, although a launcher started more processes");
}

}  // namespace

int run_command_line(int argc, char** argv) {
    CLI::App app("speedrun: trains a small GPT against the clock");
    app.require_subcommand(1);
    app.footer(kFooter);
    app.set_version_flag("--version", version_text, "version, commit, compiler, CPU level, libraries");

    TrainOptions train;
    CLI::App* train_command =
        app.add_subcommand("train", "train a model as a config says; results go to OUT/NAME/");
    train_command->add_option("config", train.config, "JSON config (see: speedrun plan --options)")
        ->required();
    add_settings(train_command, train.settings);
    train_command->add_option("--name", train.name, "name of the run folder; default: config name and time");
    train_command->add_option("--out", train.out, "folder of run folders")->capture_default_str();
    train_command->add_option("--seed", train.seed, "overrides the config's seed")
        ->check(CLI::NonNegativeNumber);
    train_command
        ->add_option(
            "--resume", train.resume,
            "auto: continue the newest good checkpoint of the run folder --name, start afresh where there "
            "is none; or continue from this checkpoint")
        ->type_name("auto|DIR");
    train_command
        ->add_option(
            "--extend-to", train.extend_to,
            "with --resume: run to this number of steps in all. The config's last stage, cooldown and final_steps move to the "
            "new end; optimizer state and position in the data continue. From a checkpoint before the cooldown this is "
            "bitwise the longer run")
        ->check(CLI::PositiveNumber)
        ->type_name("STEPS");
    train_command
        ->add_option("--trace", train.trace,
                     "write trace.json (Perfetto; speedrun trace) of these steps, all ranks")
        ->type_name("FIRST:LAST");
    train_command->add_flag("--quiet", train.quiet, "print only the result");
    add_alone(train_command, train.alone);
    train_command->footer(kFooter);

    PlanOptions plan;
    CLI::App* plan_command = app.add_subcommand(
        "plan", "check a config; print it resolved, with layers, memory, work and batch arithmetic");
    plan_command->add_option("config", plan.config, "JSON config");
    add_settings(plan_command, plan.settings);
    plan_command->add_flag("--options", plan.options_help,
                           "list every config option with its default and meaning");
    plan_command
        ->add_option("--option-pages", plan.option_pages,
                     "write this list as Markdown to a folder: a page per section")
        ->type_name("FOLDER");
    plan_command->add_flag("--schema", plan.schema, "print the JSON Schema of configs (configs/schema.json)");
    plan_command->add_flag(
        "--metrics", plan.metrics,
        "print the fields of metrics.jsonl and summary.json as JSON: keys, units, meanings");
    plan_command->add_flag(
        "--parameters", plan.parameters,
        "instead: list every parameter: name, shape, type, initial values, optimizer group, meaning");
    plan_command->add_option("--ranks", plan.ranks, "number of ranks; default: the launcher's, else 1")
        ->check(CLI::Range(1, 65536));
    plan_command
        ->add_option(
            "--gpu", plan.gpu,
            "instead: a step on this GPU, modelled operation by operation: h100, h200, a100, 4090, b200 or 5090")
        ->type_name("NAME");
    plan_command
        ->add_option(
            "--measured", plan.measured,
            "with --gpu: gpu_check.json of scripts/gpu_check.sh, or the output of op_bench --json; its rates and "
            "shares replace the built-in ones")
        ->type_name("FILE");
    plan_command->add_flag("--timeline", plan.timeline,
                           "with --gpu: the step in time, with the communication of --ranks: exposed "
                           "communication, critical path, efficiency on 8 to 4,096 GPUs");
    plan_command->add_flag(
        "--search", plan.search,
        "with --gpu: try meshes, strategies, microbatches, checkpointing and buckets that --ranks "
        "can have, and list the fastest that fit, as --set options");
    plan_command
        ->add_option("--network", plan.network,
                     "with --gpu: latency and bandwidth inside a host and between hosts, as JSON "
                     "(docs/step-time.md); default: hosts of 8 H100s")
        ->type_name("FILE");
    plan_command
        ->add_option("--trace", plan.trace,
                     "with --timeline: write the step of rank 0 there (Perfetto; speedrun trace)")
        ->type_name("FILE");
    plan_command
        ->add_option(
            "--graph", plan.graph,
            "instead: write one unit of the model, nodes and values of forward, for Graphviz (.dot, .gv)")
        ->type_name("FILE");
    plan_command
        ->add_option("--unit", plan.unit,
                     "with --graph: the unit, as numbered in the table of layers; default: the middle one "
                     "among the units with the most nodes")
        ->type_name("N");
    plan_command
        ->add_option("--stage", plan.stage,
                     "the stage of the schedule, from 0, that --gpu, --graph and the table of layers show; "
                     "default: the last")
        ->type_name("N");
    plan_command->add_flag(
        "--json", plan.json,
        "with --gpu: one JSON object, times in ms, per step (with --search: all layouts); with --parameters: a list");
    plan_command->footer(
        "--gpu runs the step's schedule on a device that computes nothing, counts each operation's calls, "
        "FLOPs\n"
        "and least bytes, and models the GPU: floor = the larger of FLOPs and bytes over its rates; modelled "
        "= the\n"
        "slower of both at the share of them that the operation's kernels reach, and a gap for each kernel. "
        "Rows\n"
        "are sorted by the difference. Shares are assumed where they say so (kernels/ops/gpu_models.cpp). "
        "One GPU;\n"
        "with --ranks: one of these, without communication time. Needs no GPU.");

    BenchOptions bench;
    CLI::App* bench_command = app.add_subcommand(
        "bench",
        "time steps of a config, operation by operation, and compare them with their roofline bounds");
    bench_command->add_option("config", bench.config, "JSON config")->required();
    add_settings(bench_command, bench.settings);
    bench_command
        ->add_option("--steps", bench.steps,
                     "number of steps timed with events around each operation, and again without")
        ->capture_default_str()
        ->check(CLI::Range(1, 10000));
    bench_command->add_option("--warmup", bench.warmup, "steps before them")
        ->capture_default_str()
        ->check(CLI::Range(0, 10000));
    bench_command->add_option("--threads", bench.threads, "CPU threads; 0: all; default: the config's")
        ->check(CLI::Range(0, 4096));
    CLI::Option* bench_stage =
        bench_command
            ->add_option("--stage", bench.stage,
                         "the stage of the schedule, from 0, to time; default: the last")
            ->type_name("N");
    bench_command
        ->add_option("--run", bench.run_seconds,
                     "instead: predict the time of the whole training here, from about SECONDS of "
                     "steps over all stages of the schedule")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 3600.0))
        ->excludes(bench_stage);
    bench_command->add_flag("--json", bench.json, "one JSON object, times in ms, per step");
    add_alone(bench_command, bench.alone);
    bench_command->footer(
        "Trains on the config's data, or on made-up tokens if its shards are missing; nothing is "
        "saved.\n"
        "floor: FLOPs over the rate of a large matmul, or the least bytes (operands read once, results "
        "written\n"
        "once) over that of a large copy, whichever is longer; ceilings are measured before and after the "
        "steps.\n"
        "A share above 100%: the data came from the cache, or attention skipped masked documents.\n"
        "One rank. Figures are means over the middle half of the steps by time.");

    LaunchOptions launch;
    CLI::App* launch_command = app.add_subcommand(
        "launch", "run a training command, and restart it from its newest checkpoint when it dies");
    launch_command
        ->add_option("command", launch.command,
                     "after --: mpirun, or another command that starts speedrun train")
        ->required();
    launch_command->add_option("--max-restarts", launch.max_restarts, "then return its exit code")
        ->capture_default_str()
        ->check(CLI::Range(0, 1000000));
    launch_command
        ->add_option("--backoff", launch.backoff_s,
                     "seconds before the first restart; doubled for each, up to 60")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 3600.0));
    launch_command
        ->add_option(
            "--stalled", launch.stalled_s,
            "seconds without a change in the run's folder after which the command is killed, and the run is considered "
            "dead: mpirun may wait forever for a lost host")
        ->capture_default_str()
        ->check(CLI::Range(1.0, 1e9));
    launch_command
        ->add_option(
            "--hosts", launch.hosts,
            "before every start, probe the hosts in this file (lines 'NAME slots=N') and place the largest "
            "possible number of ranks on hosts that answer. In the command, {ranks} is their number, {hosts} "
            "'a:8,b:8', {names} 'a,b' and {nodes} 2")
        ->type_name("FILE");
    launch_command
        ->add_option("--probe", launch.probe,
                     "shell command that probes {host}; exit code 0: the host answers")
        ->capture_default_str()
        ->type_name("COMMAND");
    launch_command->footer(
        "  speedrun launch --max-restarts 10 -- mpirun -n 8 speedrun train CONFIG --name RUN --set checkpoint.every=100\n"
        "  speedrun launch --hosts hosts.txt -- mpirun --host {hosts} -n {ranks} speedrun train CONFIG --name RUN\n"
        "--resume auto is added; metrics.jsonl stays one history. A run that died is restarted: a rank was lost (exit\n"
        "code 5), a signal, or 1. A run is not restarted if it was refused (2, 3), diverged (4), was stopped by a signal, or\n"
        "died after the same step as before, on the same number of ranks. Returns the exit code of the last run.");

    EvalOptions eval;
    CLI::App* eval_command = app.add_subcommand(
        "eval", "loss of a run, a checkpoint or a config's untrained model on its validation data or a text");
    eval_command->add_option("run", eval.run, "run folder, a checkpoint in it, or a config (.json)")
        ->required();
    add_settings(eval_command, eval.settings);
    add_eval_options(*eval_command, eval);

    SampleOptions sample;
    CLI::App* sample_command =
        app.add_subcommand("sample", "generate text from a run, a checkpoint or a config's untrained model");
    sample_command->add_option("run", sample.run, "run folder, a checkpoint in it, or a config (.json)")
        ->required();
    add_settings(sample_command, sample.settings);
    add_sample_options(*sample_command, sample);

    GradientsOptions gradients;
    CLI::App* gradients_command = app.add_subcommand(
        "gradients", "loss and raw gradients of one row of tokens, to compare with another implementation");
    gradients_command->add_option("config", gradients.config, "JSON config")->required();
    add_settings(gradients_command, gradients.settings);
    gradients_command
        ->add_option("--weights", gradients.weights,
                     "safetensors file with every parameter by its name, f32 (plan --parameters lists them)")
        ->required()
        ->type_name("FILE");
    gradients_command
        ->add_option(
            "--tokens", gradients.tokens,
            "the row: 16-bit little-endian tokens, or a shard; each but the last has the next for its target")
        ->required()
        ->type_name("FILE");
    gradients_command->add_option("--out", gradients.out, "safetensors file to write")
        ->required()
        ->type_name("FILE");
    gradients_command
        ->add_option(
            "--length", gradients.length,
            "use the first N tokens, and the next as the last one's target; default: all of the file")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20));
    gradients_command
        ->add_option("--separator", gradients.separator,
                     "the token that documents start with; default: that of the dataset of data.val")
        ->type_name("N")
        ->check(CLI::Range(0, 65535));
    gradients_command
        ->add_option(
            "--stage", gradients.stage,
            "stage of the schedule, from 0, that defines windows and loss weights; default: the last")
        ->type_name("N");
    gradients_command->footer(
        "FILE of --out: loss.mean and loss.sum, f32 [1]; losses, f32 of each token; and the gradient of every parameter\n"
        "under its name and in its shape, f32. Gradients of a step with this row only: of the mean loss, or\n"
        "with model.loss.gradient_divisor D of the sum divided by D (1: the sum); not reduced, not clipped. The row is\n"
        "one sequence with positions 0, 1, 2, ...; under data.document_mask attention restarts at each separator.\n"
        "Computes in the config's precision: compare with --set precision=f32. A whole port, step by step:\n"
        "docs/port-a-recipe.md. A tensor that is missing, unknown or of another shape is an error that names all of them.");

    PrepareOptions prepare;
    CLI::App* prepare_command = add_prepare(app, prepare);

    ImportOptions import_options;
    CLI::App* import_command = app.add_subcommand(
        "import", "make a run folder of a GPT-2 in the transformers library's layout, for eval and sample");
    import_command
        ->add_option("folder", import_options.folder, "folder with config.json and model.safetensors")
        ->required();
    add_settings(import_command, import_options.settings);
    import_command->add_option("--name", import_options.name,
                               "name of the run folder; default: the folder's");
    import_command->add_option("--out", import_options.out, "folder of run folders")->capture_default_str();

    ExportOptions export_options;
    CLI::App* export_command = app.add_subcommand(
        "export", "write a run's model and tokenizer in the transformers library's layout");
    export_command->add_option("run", export_options.run, "run folder")->required();
    export_command->add_option("folder", export_options.folder, "folder to make")->required();
    export_command->add_option("--dtype", export_options.dtype, "element type")
        ->capture_default_str()
        ->check(CLI::IsMember(words_of<DType>()));
    export_command->add_option("--vocab", export_options.vocabulary,
                               "tiktoken file or tokenizer.json, if the run has no vocabulary");

    TraceOptions trace;
    CLI::App* trace_command = app.add_subcommand(
        "trace", "share of each bucket's communication that a traced run overlapped with compute");
    trace_command->add_option("file", trace.file, "trace.json of train --trace, or its run folder")
        ->required();
    trace_command->add_option("--rank", trace.rank, "rank to show")->capture_default_str();
    trace_command->add_option("--step", trace.step, "only this step; default: mean of all traced steps");
    trace_command->add_option("--top", trace.top, "only the N buckets with the most exposed time")
        ->check(CLI::PositiveNumber);
    trace_command->add_flag("--json", trace.json, "as JSON");
    trace_command->add_option("--svg", trace.svg, "also draw the streams into this file");
    trace_command->add_option("--title", trace.title, "title of the picture");

    DoctorOptions doctor;
    CLI::App* doctor_command =
        app.add_subcommand("doctor", "check this build and this machine, and suggest fixes");
    doctor_command->add_option("--out", doctor.out, "folder of run folders, as of train")
        ->capture_default_str();
    doctor_command->add_flag("--json", doctor.json, "as JSON");
    doctor_command->footer("Exit codes: 0 runs are possible; 2 a line that says fail makes them impossible.");

    const RecordsCli records(app);

    // CLI11's own message only says that a subcommand is required.
    if (argc > 1 && argv[1][0] != '-') {
        std::string known;
        bool found = false;
        for (const CLI::App* command : app.get_subcommands({})) {
            found = found || command->get_name() == argv[1];
            known += (known.empty() ? "" : ", ") + command->get_name();
        }
        if (!found) throw_usage("unknown command '{}'; the commands are {}", argv[1], known);
    }
    try {
        expect_values(app, {argv + 1, argv + argc});
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    if (*train_command) return run_train(train);
    if (*plan_command) return run_plan(plan);
    if (*bench_command) return run_bench(bench);
    if (*launch_command) return run_launch(launch);
    if (*eval_command) return run_eval(eval);
    if (*sample_command) return run_sample(sample);
    if (*gradients_command) return run_gradients(gradients);
    if (*prepare_command) return run_prepare(prepare);
    if (*import_command) return run_import(import_options);
    if (*export_command) return run_export(export_options);
    if (*trace_command) return run_trace(trace);
    if (*doctor_command) return run_doctor(doctor);
    if (records.chosen()) return records.run();
    return static_cast<int>(ExitCode::usage);
}

}  // namespace speedrun
