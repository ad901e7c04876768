// The only file that uses MPI.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <string>

#include "kernels/device/error.h"
#include "train/comm/message_channel.h"

namespace speedrun {

namespace {

std::string text_of(int error) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    if (MPI_Error_string(error, text.data(), &length) != MPI_SUCCESS)
        return fmt::format("MPI error {}", error);
    return {text.data(), static_cast<size_t>(length)};
}

void check(int error, const char* call) {
    if (error != MPI_SUCCESS)
        throw Error(ExitCode::communication, fmt::format("{}: {}", call, text_of(error)));
}

class MpiMessages final : public PendingMessages {
  public:
    MpiMessages(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}

    ~MpiMessages() override {
        for (size_t i = 0; i < requests_.size(); ++i) {
            if (requests_[i] == MPI_REQUEST_NULL) continue;
            // After an error only: results are not used any more, but late messages must not be written to freed memory.
            if (parts_[i].receives) MPI_Cancel(&requests_[i]);
            MPI_Request_free(&requests_[i]);
        }
    }

    void send(int peer, const void* data, int64_t bytes) override {
        for_each_piece(bytes, [&](int64_t offset, int piece) {
            check(MPI_Isend(static_cast<const char*>(data) + offset, piece, MPI_BYTE, peer, tag_, comm_,
                            add(peer, piece, false)),
                  "MPI_Isend");
        });
    }

    void receive(int peer, void* data, int64_t bytes) override {
        for_each_piece(bytes, [&](int64_t offset, int piece) {
            check(MPI_Irecv(static_cast<char*>(data) + offset, piece, MPI_BYTE, peer, tag_, comm_,
                            add(peer, piece, true)),
                  "MPI_Irecv");
        });
    }

    bool test() override {
        if (num_pending_ == 0) return true;
        int num_done = 0;
        done_.resize(requests_.size());
        statuses_.resize(requests_.size());
        const int error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_done,
                                       done_.data(), statuses_.data());
        if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) check(error, "MPI_Testsome");
        for (int i = 0; i < num_done; ++i)
            check_done(parts_[static_cast<size_t>(done_[static_cast<size_t>(i)])],
                       statuses_[static_cast<size_t>(i)], error);
        num_pending_ -= num_done;
        return num_pending_ == 0;
    }

    int64_t num_pending() const override { return num_pending_; }

    int first_pending_peer() const override {
        for (const bool receives : {true, false}) {
            for (size_t i = 0; i < requests_.size(); ++i) {
                if (requests_[i] != MPI_REQUEST_NULL && parts_[i].receives == receives) return parts_[i].peer;
            }
        }
        return -1;
    }

  private:
    struct Part {
        int peer;
        int bytes;
        bool receives;
    };

    // MPI counts are int. An empty range sends no message.
    template <class Start>
    static void for_each_piece(int64_t bytes, Start start) {
        constexpr int64_t kPiece = 1 << 30;
        for (int64_t offset = 0; offset < bytes; offset += kPiece)
            start(offset, static_cast<int>(std::min(kPiece, bytes - offset)));
    }

    MPI_Request* add(int peer, int bytes, bool receives) {
        parts_.push_back({peer, bytes, receives});
        requests_.push_back(MPI_REQUEST_NULL);
        ++num_pending_;
        return &requests_.back();
    }

    static void check_done(const Part& part, const MPI_Status& status, int error) {
        const int failure = error == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
        int error_class = MPI_SUCCESS;
        check(MPI_Error_class(failure, &error_class), "MPI_Error_class");
        int bytes = part.bytes;
        if (failure == MPI_SUCCESS && part.receives)
            check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
        if (error_class == MPI_ERR_TRUNCATE || bytes != part.bytes) {
            throw Error(ExitCode::communication,
                        fmt::format("the message from rank {} is {} than {} bytes: it runs another "
                                    "collective, or one of another size",
                                    part.peer, bytes < part.bytes ? "shorter" : "longer", part.bytes));
        }
        if (failure != MPI_SUCCESS) {
            throw Error(ExitCode::communication,
                        fmt::format("message {} rank {}: {}", part.receives ? "from" : "to", part.peer,
                                    text_of(failure)));
        }
    }

    const MPI_Comm comm_;
    const int tag_;
    int64_t num_pending_ = 0;
    std::vector<Part> parts_;
    std::vector<MPI_Request> requests_;  // MPI_REQUEST_NULL when done
    std::vector<int> done_;
    std::vector<MPI_Status> statuses_;
};

class MpiChannel final : public MessageChannel {
  public:
    explicit MpiChannel(MPI_Comm comm) : comm_(comm) {}

    std::unique_ptr<PendingMessages> start(int tag) override {
        return std::make_unique<MpiMessages>(comm_, tag);
    }

    int try_receive(int tag, void* data, int64_t bytes) override {
        int arrived = 0;
        MPI_Message message = MPI_MESSAGE_NULL;
        MPI_Status status{};
        check(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &arrived, &message, &status), "MPI_Improbe");
        if (!arrived) return -1;
        check(MPI_Mrecv(data, static_cast<int>(bytes), MPI_BYTE, &message, &status), "MPI_Mrecv");
        return status.MPI_SOURCE;
    }

  private:
    // Never freed: MPI_Comm_free is collective, and channels have the lifetime of the run.
    const MPI_Comm comm_;
};

class MpiTransport final : public MessageTransport {
  public:
    MpiTransport() {
        int provided = 0;
        check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
        if (provided < MPI_THREAD_MULTIPLE)
            throw_usage(
                "this MPI was built without MPI_THREAD_MULTIPLE, which streams need; install one that has "
                "it");
        // Inherited by every duplicate.
        check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
        check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
        check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
        MPI_Comm host = MPI_COMM_NULL;
        check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
        check(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
        check(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
        check(MPI_Comm_free(&host), "MPI_Comm_free");
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    int local_rank() const override { return local_rank_; }
    int local_size() const override { return local_size_; }

    std::unique_ptr<MessageChannel> open_channel() override {
        MPI_Comm comm = MPI_COMM_NULL;
        check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
        return std::make_unique<MpiChannel>(comm);
    }

    void close() override { check(MPI_Finalize(), "MPI_Finalize"); }

    [[noreturn]] void kill_all(int exit_code) noexcept override {
        MPI_Abort(MPI_COMM_WORLD, exit_code);
        std::_Exit(exit_code);
    }

  private:
    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

}  // namespace

std::string mpi_library_version() {
    // May be called before MPI_Init. Open MPI appends details after a comma, MPICH on further lines.
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
    const std::string whole(text.data(), static_cast<size_t>(length));
    return whole.substr(0, whole.find_first_of(",\n"));
}

std::unique_ptr<MessageTransport> make_mpi_transport() {
    return std::make_unique<MpiTransport>();
}

}  // namespace speedrun
