// Muon for matrices of which each rank stores rows (zero3). Momentum is elementwise and works on the rows;
// the polar factor needs whole matrices, so as many matrices of one shape as there are ranks form a bank: an
// all-to-all brings each owner the rows of its matrix, it orthogonalises (and normalises, with `normuon`),
// and an all-to-all brings the rows back, in the compute type both ways. Equations: see muon.h.
#pragma once

#include <map>
#include <vector>

#include "train/distributed/reducer.h"
#include "train/optim/optimizer.h"

namespace speedrun {

class Slices;

class RowMuon final : public Optimizer {
  public:
    RowMuon(const OptimizerGroupConfig& group, const std::vector<const Region*>& members,
            ParameterStore& parameters, GradientStore& gradients, Reducer& reducer, Runtime& runtime);
    // The matrices of a region change when their bank is complete: all banks are when every region has been
    // stepped, which all ranks do in the order in which the members were given.
    void step(const Region& region, const StepContext& context) override;
    void reset(Stream& stream) override;
    std::vector<StatePart> state(const Region& region) const override;

  private:
    // A matrix of a bank: what this rank holds of it.
    struct Member {
        const Region* region = nullptr;
        int64_t first = 0;     // of the matrix, in elements of the region
        int64_t in_part = 0;   // of this rank's rows, in elements of its part
        int64_t elements = 0;  // of this rank's rows
        Tensor grad_scale;
    };
    // Matrices of one shape: their banks follow one another through the same buffers.
    struct Family {
        MatrixFamily shape;
        int64_t done = 0;  // matrices, in this step; the number of the next one
        std::vector<Member> bank;
        Tensor outgoing, incoming;  // real [ranks · block]
        Tensor matrix;              // real [1, rows, cols]: incoming's memory, if rows come whole
        Tensor workspace;
        Tensor second_moment;  // f32 [banks, lines]: of the matrices that this rank owns
    };

    Tensor momentum_of(const Region& region) const;  // flat
    void place_family(Family& family, Slices& matrices, Slices& lines) const;
    void finish_bank(Family& family, const StepContext& context);
    void copy(void* to, const void* from, int64_t elements, Stream& stream);
    // Between an owner's matrix and the blocks by rank that were, or will be, exchanged.
    void assemble(const Family& family, const Member& own, bool into_matrix, Stream& stream);

    const OptimizerGroupConfig group_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    const int ranks_, index_;
    Buffer momentum_, second_moments_, update_, exchange_;
    std::map<int, int64_t> momentum_offset_;  // bytes, by region id
    std::map<int, int64_t> first_number_;     // by region id: of its first matrix, as its family is stepped
    std::map<std::pair<int64_t, int64_t>, Family> families_;  // by rows and columns
};

}  // namespace speedrun
