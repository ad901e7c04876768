// build: in cuda_code_tests
#include "tests/cuda/sass.h"

#include <tuple>

namespace speedrun::testing {
namespace {

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t\r");
    return first == std::string_view::npos ? std::string_view() : text.substr(first, last - first + 1);
}

// "LDG" of "LDG.E.128"
std::string_view base_of(std::string_view opcode) {
    return opcode.substr(0, opcode.find('.'));
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
    for (const std::string_view candidate : words)
        if (word == candidate) return true;
    return false;
}

// Parses "@P0 BRA `(.L_x_1)", the text after the address comment, without the semicolon.
SassInstruction instruction_of(std::string_view text) {
    SassInstruction result;
    result.always = text.front() != '@';
    if (!result.always) text = trimmed(text.substr(std::min(text.size(), text.find(' '))));
    const size_t opcode_end = std::min(text.find(' '), text.size());
    result.opcode = text.substr(0, opcode_end);
    const std::string_view operands = trimmed(text.substr(opcode_end));
    const size_t begin = operands.find("`("), end = operands.find(')', begin);
    if (begin != std::string_view::npos && end != std::string_view::npos)
        result.target = operands.substr(begin + 2, end - begin - 2);
    if (begin != 0 && base_of(result.opcode) == "BRA") result.always = false;  // BRA P0, `(.L_x_1)
    return result;
}

}  // namespace

std::map<std::string, SassListing> read_sass(std::istream& listing) {
    std::map<std::string, SassListing> kernels;
    SassListing* current = nullptr;
    for (std::string line; std::getline(listing, line);) {
        const std::string_view text = trimmed(line);
        if (text.empty() || text.starts_with("//")) continue;
        if (text.starts_with(".section")) current = nullptr;
        if (text.back() == ':' && line[0] != ' ' && line[0] != '\t') {
            const std::string label(text.substr(0, text.size() - 1));
            if (label.starts_with(".text.")) current = &kernels[label.substr(6)];
            if (current) current->labels[label] = static_cast<int64_t>(current->instructions.size());
        } else if (current && text.starts_with("/*")) {
            const size_t begin = text.find("*/"), end = text.rfind(';');
            if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) continue;
            const std::string_view instruction = trimmed(text.substr(begin + 2, end - begin - 2));
            if (!instruction.empty()) current->instructions.push_back(instruction_of(instruction));
        }
    }
    return kernels;
}

void SassCounts::add(const std::string& opcode) {
    const std::string_view base = base_of(opcode);
    if (base == "NOP") return;
    ++instructions;
    tensor += base.ends_with("MMA");
    fused += base == "FFMA";
    shared += is_one_of(base, {"LDS", "STS", "LDSM", "STSM", "ATOMS", "LDGSTS"});
    global += is_one_of(base, {"LDG", "STG", "LDGSTS", "RED", "REDG", "ATOM", "ATOMG", "LD", "ST"});
    divergent += base == "BSSY";
    local += is_one_of(base, {"LDL", "STL"});
}

SassCounts count(const SassListing& kernel) {
    SassCounts counts;
    for (const SassInstruction& instruction : kernel.instructions) counts.add(instruction.opcode);
    return counts;
}

SassLoop hot_loop(const SassListing& kernel) {
    SassLoop hot;
    hot.depth = 0;
    const auto rank = [](const SassLoop& loop) {
        // The innermost of loops with equal numbers of tensor instructions: the others repeat it.
        const int64_t inner = loop.own.tensor > 0 ? loop.depth : 0;
        return std::tuple(loop.own.tensor, inner, loop.own.fused, loop.depth, loop.own.instructions);
    };
    for (const SassLoop& loop : loops_of(kernel))
        if (rank(loop) > rank(hot)) hot = loop;
    return hot;
}

}  // namespace speedrun::testing
