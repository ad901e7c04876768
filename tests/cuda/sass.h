// What a kernel's machine code (SASS) consists of, in all and in its hot loop, read from what `nvdisasm -c`
// prints.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace speedrun::testing {

struct SassInstruction {
    std::string opcode;   // with its modifiers: "LDG.E.128"
    std::string target;   // label that a branch goes to, or ""
    bool always = false;  // executed by all threads that come here: no predicate, no branch condition
};

// A kernel's section: its labels are indices of the instructions that follow them.
struct SassListing {
    std::vector<SassInstruction> instructions;
    std::map<std::string, int64_t> labels;
};

// Listing of each section .text.NAME, by NAME (mangled).
std::map<std::string, SassListing> read_sass(std::istream& listing);

// Instructions by kind. NOPs, which only pad, are left out.
struct SassCounts {
    int64_t instructions = 0;
    int64_t tensor = 0;     // HMMA, IMMA, HGMMA, ...
    int64_t fused = 0;      // FFMA: in products that do without tensor cores, and in divisions
    int64_t shared = 0;     // LDS, STS, LDSM, STSM, ATOMS, LDGSTS
    int64_t global = 0;     // LDG, STG, LDGSTS, RED, ATOM; and LD, ST, whose address may be any memory's
    int64_t divergent = 0;  // BSSY: branches whose threads may part and meet again
    int64_t local = 0;      // LDL, STL: spills, and arrays that are not in registers
    void add(const std::string& opcode);
    bool operator==(const SassCounts&) const = default;
};

// A natural loop: the blocks from which a branch back to `header` is reached without passing `header`, which
// comes before all of them on every path. Source: Aho, Lam, Sethi, Ullman, Compilers (2nd ed.), 9.6.
struct SassLoop {
    int64_t header = 0;  // index of its first instruction
    int64_t depth = 1;   // loops that it is in, itself included
    SassCounts counts;   // of its body, the loops within included; called subroutines are not
    SassCounts own;      // without the loops within
};

// By header. Code that only a call reaches (the slow paths of division) has none.
std::vector<SassLoop> loops_of(const SassListing& kernel);

// The loop that a kernel's time goes to, as far as a listing can tell: with most tensor instructions of its
// own; among equals with most fused multiply-adds of its own, then the deepest, then with most instructions
// of its own, then the first. Without a loop: depth 0.
SassLoop hot_loop(const SassListing& kernel);

SassCounts count(const SassListing& kernel);

}  // namespace speedrun::testing
