#include "train/trace/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

struct Kind {
    const char* name;
    const char* colour;
};
constexpr std::array<Kind, 7> kKinds{{{"forward", "#5aa9e6"},
                                      {"backward", "#1d5f99"},
                                      {"reduce", "#e8811a"},
                                      {"step", "#3d9e5f"},
                                      {"gather", "#9457b8"},
                                      {"norms and sums", "#b9a77c"},
                                      {"other", "#b0b0b0"}}};

size_t kind_of(const TraceSpan& span) {
    if (span.phase == "forward") return 0;
    if (span.phase == "backward") return 1;
    if (span.phase == "reduce" && span.communicates) return 2;
    if (span.phase == "step") return 3;
    if (span.phase == "gather") return 4;
    if (span.phase == "reduce" || span.phase == "statistics") return 5;
    return 6;
}

struct Bar {
    double x, end;
    size_t kind;
    std::string bucket;
};

constexpr double kLeft = 80, kWidth = 1100, kTop = 56, kRow = 26, kBar = 20, kPixel = 0.75;

std::string svg_text(const std::string& text) {
    std::string result;
    for (const char c : text) {
        if (c == '<') result += "&lt;";
        if (c == '>') result += "&gt;";
        if (c == '&') result += "&amp;";
        if (c != '<' && c != '>' && c != '&') result += c;
    }
    return result;
}

std::string text_at(double x, double y, const char* attributes, const std::string& text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, attributes, svg_text(text));
}

// Bars in order of time, each at least one pixel wide. A bar within the previous one is merged into it.
void append(std::vector<Bar>& bars, Bar bar) {
    if (!bars.empty()) {
        Bar& last = bars.back();
        const bool same = last.kind == bar.kind && last.bucket == bar.bucket && bar.x - last.end < kPixel;
        if (same || bar.end <= last.end) {
            last.end = std::max(last.end, bar.end);
            return;
        }
        bar.x = std::max(bar.x, last.end);
    }
    bar.end = std::max(bar.end, bar.x + kPixel);
    bars.push_back(std::move(bar));
}

std::string draw_row(const std::vector<Bar>& bars, double y) {
    std::string svg, labels;
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
        std::string path;
        for (const Bar& bar : bars) {
            if (bar.kind == kind)
                path += fmt::format("M{:.1f} {}h{:.1f}v{}H{:.1f}z", bar.x, y, bar.end - bar.x, kBar, bar.x);
        }
        if (!path.empty())
            svg += fmt::format("<path stroke=\"#fff\" stroke-width=\".4\" fill=\"{}\" d=\"{}\"/>\n",
                               kKinds[kind].colour, path);
    }
    constexpr double kLetter = 5.6;
    for (const Bar& bar : bars) {
        const auto letters = static_cast<size_t>(std::max(0.0, (bar.end - bar.x - 4) / kLetter));
        std::string name = bar.bucket.empty() ? kKinds[bar.kind].name : bar.bucket;
        if (letters < 5) continue;
        if (name.size() > letters) name = name.substr(0, letters - 1) + "…";
        labels += text_at(bar.x + 3, y + 14, " class=\"l\"", name);
    }
    return svg + labels;
}

// Returns 1, 2 or 5 times a power of ten, for about ten ticks in the window.
double tick_of(double window) {
    const double power = std::pow(10.0, std::floor(std::log10(window / 10)));
    for (const double factor : {1.0, 2.0, 5.0})
        if (window / (factor * power) <= 12) return factor * power;
    return 10 * power;
}

}  // namespace

std::string draw_timeline(const Trace& trace, int rank, std::optional<int64_t> step,
                          const std::string& title) {
    std::vector<const TraceSpan*> spans;
    double begin = 1e300, end = -1e300;
    for (const TraceSpan& span : trace.spans) {
        if (span.rank != rank) continue;
        spans.push_back(&span);
        if (span.step < 0 || (step && span.step != *step)) continue;
        begin = std::min(begin, span.begin_ms);
        end = std::max(end, span.end_ms);
    }
    constexpr double kMinMs = 1e-6;  // a nanosecond, the unit of the clocks
    if (!(end - begin >= kMinMs)) throw_data("the trace has no spans of rank {} to draw", rank);
    std::vector<std::string> streams;
    for (const char* known : {"compute", "reduce", "optimizer", "gather"}) {
        const auto here = [&](const TraceSpan* span) { return span->stream == known; };
        if (std::any_of(spans.begin(), spans.end(), here)) streams.emplace_back(known);
    }
    const auto x_of = [&](double ms) {
        return kLeft + kWidth * (std::clamp(ms, begin, end) - begin) / (end - begin);
    };
    const double bottom = kTop + kRow * static_cast<double>(streams.size());
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n"
        "<style>text{{font:12px "
        "sans-serif;fill:#222}}.l{{font-size:10px;fill:#fff}}.t{{font-size:10px;fill:#666}}"
        "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        kLeft + kWidth + 20, bottom + 44);
    svg += text_at(8, 18, " font-weight=\"bold\"", title);
    const double tick = tick_of(end - begin);
    for (double t = 0; t <= end - begin; t += tick) {
        const double x = x_of(begin + t);
        svg += fmt::format("<path stroke=\"#ddd\" d=\"M{:.1f} {}V{}\"/>\n", x, kTop - 6, bottom);
        svg += text_at(x, kTop - 10, " class=\"t\"", fmt::format("{:g} ms", t));
    }
    for (size_t row = 0; row < streams.size(); ++row) {
        const double y = kTop + kRow * static_cast<double>(row);
        std::vector<Bar> bars;
        for (const TraceSpan* span : spans) {
            if (span->stream != streams[row] || span->end_ms <= begin || span->begin_ms >= end) continue;
            append(bars, {x_of(span->begin_ms), x_of(span->end_ms), kind_of(*span), span->bucket});
        }
        svg += text_at(8, y + 14, "", streams[row]);
        svg += draw_row(bars, y);
    }
    double x = kLeft;
    for (const Kind& kind : kKinds) {
        svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x,
                           bottom + 14, kind.colour);
        svg += text_at(x + 17, bottom + 24, "", kind.name);
        x += 30 + 8 * static_cast<double>(std::string(kind.name).size());
    }
    return svg + "</svg>\n";
}

}  // namespace speedrun
