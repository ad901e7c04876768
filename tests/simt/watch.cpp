// build: in watch_tests
#include "tests/simt/watch.h"

#include <elf.h>
#include <link.h>

#include <fstream>
#include <iterator>
#include <map>

#include "kernels/cuda/device/kernel_name.h"
#include "kernels/device/error.h"

namespace speedrun::simt {

namespace {

// Functions of this program by address, including internal linkage, which dladdr() does not resolve.
std::map<uintptr_t, std::string> program_functions() {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    const std::string image{std::istreambuf_iterator<char>(file), {}};
    const auto at = [&]<class T>(uint64_t offset, const T* /*type*/) {
        if (offset + sizeof(T) > image.size())
            throw_internal("/proc/self/exe ends at {} bytes", image.size());
        return reinterpret_cast<const T*>(image.data() + offset);
    };
    uintptr_t base = 0;  // load address of the program: the first listed object
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* result) {
            *static_cast<uintptr_t*>(result) = info->dlpi_addr;
            return 1;
        },
        &base);
    const auto* const header = at(0, static_cast<const ElfW(Ehdr)*>(nullptr));
    const auto section = [&](uint64_t i) {
        return at(header->e_shoff + i * header->e_shentsize, static_cast<const ElfW(Shdr)*>(nullptr));
    };
    std::map<uintptr_t, std::string> functions;
    for (uint64_t i = 0; i < header->e_shnum; ++i) {
        if (section(i)->sh_type != SHT_SYMTAB) continue;
        const uint64_t names = section(section(i)->sh_link)->sh_offset;
        for (uint64_t s = 0; s < section(i)->sh_size; s += sizeof(ElfW(Sym))) {
            const auto* const symbol = at(section(i)->sh_offset + s, static_cast<const ElfW(Sym)*>(nullptr));
            if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_value != 0)
                functions[base + symbol->st_value] =
                    at(names + symbol->st_name, static_cast<const char*>(nullptr));
        }
    }
    return functions;
}

}  // namespace

std::string kernel_name(const Launch& launch) {
    static const std::map<uintptr_t, std::string> functions = program_functions();
    const auto found = functions.find(reinterpret_cast<uintptr_t>(launch.address));
    if (found == functions.end())
        throw_internal("the kernel launched in {} has no symbol: is the program stripped?", launch.function);
    std::string name = short_kernel_name(found->second.c_str());
    if (name.find('{') == std::string::npos) return name;
    const size_t end = name.find(',');  // the functor, a lambda, follows
    return end == std::string::npos ? name.substr(0, name.find('<')) : name.substr(0, end) + ">";
}

}  // namespace speedrun::simt
