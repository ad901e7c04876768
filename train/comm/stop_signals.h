// Signals of a process that trains, or that starts training processes.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <string>

namespace speedrun {

// Signals that ask a run to save a checkpoint and to end with 128 + signal. Schedulers send USR1, USR2, XCPU and TERM; a closed
// terminal sends HUP.
inline constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

// Ignores SIGPIPE and SIGXFSZ: a write to a closed pipe or beyond the file size limit fails without ending the process.
void ignore_write_signals();
// Restores the defaults in a child before exec. Async-signal-safe.
void restore_write_signals();

// Installs the handler for kStopSignals, without SIGHUP if the parent ignores it (nohup). SIGINT is handled even if ignored: a
// shell without job control ignores it in every background command.
void handle_stop_signals(void (*handler)(int));
// Window in which a repeated signal is the same request: timeout(1) signals its child and then the child's group, mpirun
// forwards a terminal's INT.
inline constexpr std::chrono::milliseconds kRepeatedSignal{500};
// True for a SIGINT or SIGTERM more than kRepeatedSignal after the first of its kind: the sender requests an end without a
// checkpoint. False for other signals: a closed terminal sends HUP twice, an exceeded CPU limit XCPU every second.
// Async-signal-safe. Call it once for each signal.
bool insists(int signal);

// True for the exit code of a program ended by one of kStopSignals.
bool is_stop_code(int exit_code);
// "SIGHUP (its terminal was closed)", "SIGTERM".
std::string signal_text(int signal);

}  // namespace speedrun
