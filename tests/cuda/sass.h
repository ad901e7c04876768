// Instructions of a kernel's machine code (SASS), in total and in its hot loop, from the output of `nvdisasm
// -c`.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace speedrun::testing {

struct SassInstruction {
    std::string opcode;   // with modifiers: "LDG.E.128"
    std::string target;   // label of a branch target, or ""
    bool always = false;  // executed by all threads that reach it: no predicate, no branch condition
};

// Section of a kernel: its labels are indices of the instructions that follow them.
struct SassListing {
    std::vector<SassInstruction> instructions;
    std::map<std::string, int64_t> labels;
};

// Listing of each section .text.NAME, by NAME (mangled).
std::map<std::string, SassListing> read_sass(std::istream& listing);

// Instructions by kind. NOPs are not counted: they are padding.
struct SassCounts {
    int64_t instructions = 0;
    int64_t tensor = 0;     // HMMA, IMMA, HGMMA, ...
    int64_t fused = 0;      // FFMA: in matmuls without tensor cores, and in divisions
    int64_t shared = 0;     // LDS, STS, LDSM, STSM, ATOMS, LDGSTS
    int64_t global = 0;     // LDG, STG, LDGSTS, RED, ATOM; and LD, ST with generic addresses
    int64_t divergent = 0;  // BSSY: branches that may diverge and reconverge
    int64_t local = 0;      // LDL, STL: spills, and arrays outside registers
    void add(const std::string& opcode);
    bool operator==(const SassCounts&) const = default;
};

// A natural loop: the blocks from which a branch back to `header` is reached without passing `header`, which
// precedes all of them on every path. Source: Aho, Lam, Sethi, Ullman, Compilers (2nd ed.), 9.6.
struct SassLoop {
    int64_t header = 0;  // index of its first instruction
    int64_t depth = 1;   // number of enclosing loops, including itself
    SassCounts counts;   // instructions of its body with inner loops; without called subroutines
    SassCounts own;      // without inner loops
};

// Ordered by header. Code reached only by a call (slow paths of division) has none.
std::vector<SassLoop> loops_of(const SassListing& kernel);

// Loop with most of a kernel's run time, as estimated from the listing: the most tensor instructions of its
// own. Ties are broken by fused multiply-adds of its own, then depth, then instructions of its own, then
// order. Without a loop: depth 0.
SassLoop hot_loop(const SassListing& kernel);

SassCounts count(const SassListing& kernel);

}  // namespace speedrun::testing
