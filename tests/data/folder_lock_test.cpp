// Covers: data/lock_file.cpp
#include "data/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <regex>
#include <thread>

#include "tests/errors.h"
#include "tests/temp_dir.h"

namespace speedrun {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr LockTimes kQuick{
    .renewal = milliseconds(10), .stale = milliseconds(300), .settle = milliseconds(20)};

class FolderLockTest : public testing::Test {
  protected:
    std::string folder() const { return dir_.path(); }
    std::string file() const { return folder() + "/" + kFolderLock; }
    std::string text() const { return read_text(file()); }
    void write(const std::string& text) const { std::ofstream(file()) << text; }
    // The lock's content as written by another kernel.
    static std::string of_other_boot(const std::string& text) {
        return std::regex_replace(text, std::regex(R"("boot_id":"[^"]*")"), R"("boot_id":"other")");
    }
    std::string refusal() const {
        return error_of(ExitCode::usage, [&] { const FolderLock lock(folder(), kQuick); });
    }
    // Takes a lock in a child process and kills it without a release. Returns its pid.
    pid_t killed_writer() const {
        const pid_t child = fork();
        if (child == 0) {
            const FolderLock lock(folder(), kQuick);
            kill(getpid(), SIGKILL);
        }
        waitpid(child, nullptr, 0);
        return child;
    }

    TempDir dir_;
};

TEST_F(FolderLockTest, ASecondWriterIsRefusedAndNamesTheFirst) {
    std::optional<FolderLock> lock(std::in_place, folder());
    EXPECT_EQ(lock->note(), "");
    const std::string why = refusal();
    for (const std::string& part :
         {folder() + " is being written by process " + std::to_string(getpid()) + " on ",
          std::string(" since 20"), std::string("data_tests")})
        EXPECT_THAT(why, HasSubstr(part));
    EXPECT_THAT(FolderLock::writer(folder()), HasSubstr(std::to_string(getpid())));
    lock->expect_held();
    lock.reset();
    EXPECT_FALSE(fs::exists(file()));
    EXPECT_EQ(FolderLock::writer(folder()), "");
    EXPECT_EQ(refusal(), "accepted");
}

TEST_F(FolderLockTest, AKilledWriterIsReplacedAndNoted) {
    const pid_t child = killed_writer();
    ASSERT_TRUE(fs::exists(file()));
    EXPECT_EQ(FolderLock::writer(folder()), "");
    const FolderLock lock(folder());  // with the times of real runs: no wait
    EXPECT_THAT(lock.note(), HasSubstr("process " + std::to_string(child) + " on "));
}

TEST_F(FolderLockTest, AnEmptyOrDamagedFileIsReplaced) {
    for (const char* content : {"", "{", "[1]", "null", "{\"pid\": [[]], \"boot_id\": 5}"}) {
        write(content);
        EXPECT_EQ(refusal(), "accepted") << content;
    }
}

TEST_F(FolderLockTest, ExactlyOneOfManyConcurrentWritersIsGranted) {
    for (const bool stale : {false, true}) {
        for (int round = 0; round < 10; ++round) {
            if (stale) killed_writer();
            std::atomic<int> granted = 0, refused = 0, started = 0;
            std::atomic<bool> wrong = false;
            std::vector<std::thread> threads;
            constexpr int kThreads = 6;
            for (int i = 0; i < kThreads; ++i)
                threads.emplace_back([&] {
                    std::optional<FolderLock> lock;
                    ++started;
                    while (started < kThreads) std::this_thread::yield();
                    try {
                        lock.emplace(folder(), kQuick);
                        ++granted;
                        for (int i = 0; i < 1000 && granted + refused < kThreads; ++i)
                            std::this_thread::sleep_for(milliseconds(5));
                    } catch (const Error& error) {
                        ++refused;
                        if (std::string(error.what()).find(std::to_string(getpid())) == std::string::npos)
                            wrong = true;
                    }
                });
            for (std::thread& thread : threads) thread.join();
            EXPECT_EQ(granted, 1) << stale;
            EXPECT_FALSE(wrong) << "a refusal named another process";
            EXPECT_FALSE(fs::exists(file()));
        }
    }
}

// A file system without locks between hosts: the file is not locked here, but its signs of life are renewed.
TEST_F(FolderLockTest, AWriterOnAnotherHostIsRecognisedByItsSignsOfLife) {
    std::string other;
    {
        const FolderLock lock(folder(), kQuick);
        other = of_other_boot(text());
    }
    write(other);
    std::atomic<bool> ended = false;
    std::thread renewal([&] {
        while (!ended) {
            fs::last_write_time(file(), fs::file_time_type::clock::now());
            std::this_thread::sleep_for(milliseconds(10));
        }
    });
    const std::string why = refusal();
    EXPECT_THAT(why, HasSubstr("gone for good, remove " + file()));
    EXPECT_NE(FolderLock::writer(folder(), kQuick), "");
    ended = true;
    renewal.join();
    EXPECT_EQ(text(), other);
    EXPECT_EQ(FolderLock::writer(folder(), kQuick), "");
    const FolderLock lock(folder(), kQuick);
    EXPECT_THAT(lock.note(), HasSubstr("replaces the lock of process"));
}

// A file server that keeps the lock of a lost host: held, but not renewed.
TEST_F(FolderLockTest, ALockThatIsHeldForALostHostIsReplaced) {
    std::string other;
    {
        const FolderLock lock(folder(), kQuick);
        other = of_other_boot(text());
    }
    write(other);
    const int server = open(file().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(flock(server, LOCK_EX), 0);
    EXPECT_EQ(FolderLock::writer(folder(), kQuick), "");
    {
        const FolderLock lock(folder(), kQuick);
        EXPECT_THAT(lock.note(), HasSubstr("replaces the lock of process"));
        EXPECT_NE(text(), other);
    }
    // With an unknown writer the lock is valid.
    write("");
    const int unknown = open(file().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(flock(unknown, LOCK_EX), 0);
    EXPECT_NE(refusal(), "accepted");
    close(server);
    close(unknown);
}

TEST_F(FolderLockTest, AWriterWhoseLockIsTakenOrRemovedIsStopped) {
    for (const bool removed : {false, true}) {
        const FolderLock lock(folder(), kQuick);
        lock.expect_held();
        removed ? static_cast<void>(fs::remove(file())) : write(of_other_boot(text()));
        std::this_thread::sleep_for(3 * kQuick.renewal);
        expect_error(ExitCode::usage, {removed ? "was removed" : "is written by process"},
                     [&] { lock.expect_held(); });
        fs::remove(file());
    }
}

TEST_F(FolderLockTest, AFolderThatCannotBeWrittenIsRefused) {
    EXPECT_THROW(FolderLock("/proc/self", kQuick), Error);
    EXPECT_THROW(FolderLock(folder() + "/none", kQuick), Error);
}

}  // namespace
}  // namespace speedrun
