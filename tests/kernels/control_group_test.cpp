// Limits of control groups, read from synthetic trees: both versions, nested groups, namespaces, damaged
// files.
#include "kernels/device/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/temp_dir.h"

namespace speedrun::testing::control_group_test {

constexpr int64_t kMiB = 1 << 20;

class ControlGroupTest : public ::testing::Test {
  protected:
    void put(const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(root_.file(path)).parent_path());
        root_.write(path, text);
    }
    // One mount of each version 1 controller; `group`: own group, `shown`: group at the mount points.
    void version_1(const std::string& group, const std::string& shown = "/") {
        put("proc/self/cgroup",
            "8:pids:" + group + "\n4:memory:" + group + "\n2:cpu,cpuacct:" + group + "\n");
        put("proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 " + shown +
                " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 31 0:29 " + shown +
                " /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n39 31 "
                "0:36 " +
                shown + " /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n");
    }
    void version_2(const std::string& group, const std::string& shown = "/") {
        put("proc/self/cgroup", "0::" + group + "\n");
        put("proc/self/mountinfo", "30 23 0:26 " + shown + " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    }
    ControlGroup read() const { return read_control_group(root_.path()); }

    TempDir root_;
};

TEST_F(ControlGroupTest, Version2) {
    version_2("/job");
    put("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
    put("sys/fs/cgroup/job/memory.max", std::to_string(100 * kMiB) + "\n");
    put("sys/fs/cgroup/job/memory.current", std::to_string(70 * kMiB) + "\n");
    put("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file " + std::to_string(20 * kMiB) +
                                             "\nactive_file " + std::to_string(10 * kMiB) + "\n");
    put("sys/fs/cgroup/job/pids.max", "50\n");
    put("sys/fs/cgroup/job/pids.current", "12\n");
    const ControlGroup group = read();
    ASSERT_TRUE(group.cores && group.memory && group.tasks);
    EXPECT_EQ(group.cores->cores, 1.5);
    EXPECT_EQ(group.cores->source, "/sys/fs/cgroup/job/cpu.max");
    EXPECT_EQ(group.memory->limit, 100 * kMiB);
    EXPECT_EQ(group.memory->left, 60 * kMiB);  // page cache is reclaimable
    EXPECT_EQ(group.tasks->left, 38);
}

TEST_F(ControlGroupTest, OuterGroupMayHaveLowerLimit) {
    version_2("/outer/job/step");
    put("sys/fs/cgroup/outer/job/step/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/outer/job/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/outer/cpu.max", "100000 50000\n");
    put("sys/fs/cgroup/outer/job/memory.max", std::to_string(100 * kMiB) + "\n");
    put("sys/fs/cgroup/outer/memory.max", std::to_string(500 * kMiB) + "\n");
    put("sys/fs/cgroup/outer/memory.current", std::to_string(490 * kMiB) + "\n");  // other jobs
    put("sys/fs/cgroup/outer/pids.max", "20\n");
    const ControlGroup group = read();
    EXPECT_EQ(group.cores->cores, 2);
    EXPECT_EQ(group.memory->left, 10 * kMiB);
    EXPECT_EQ(group.memory->source, "/sys/fs/cgroup/outer/memory.max");
    EXPECT_EQ(group.tasks->left, 20);
}

TEST_F(ControlGroupTest, MemoryHighIsALimit) {
    version_2("/job");
    put("sys/fs/cgroup/job/memory.max", std::to_string(100 * kMiB) + "\n");
    put("sys/fs/cgroup/job/memory.high", std::to_string(80 * kMiB) + "\n");
    EXPECT_EQ(read().memory->limit, 80 * kMiB);
}

TEST_F(ControlGroupTest, Version1) {
    version_1("/job");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(60 * kMiB) + "\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(25 * kMiB) + "\n");
    put("sys/fs/cgroup/memory/job/memory.stat",
        "cache 1\ntotal_inactive_file " + std::to_string(5 * kMiB) + "\n");
    put("sys/fs/cgroup/pids/job/pids.max", "30\n");
    put("sys/fs/cgroup/pids/job/pids.current", "40\n");
    const ControlGroup group = read();
    ASSERT_TRUE(group.cores && group.memory && group.tasks);
    EXPECT_EQ(group.cores->cores, 0.5);
    EXPECT_EQ(group.memory->limit, 60 * kMiB);
    EXPECT_EQ(group.memory->left, 40 * kMiB);
    EXPECT_EQ(group.tasks->left, 0);
}

TEST_F(ControlGroupTest, Version1WithoutLimits) {
    version_1("/");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
    put("sys/fs/cgroup/pids/pids.max", "max\n");
    const ControlGroup group = read();
    EXPECT_FALSE(group.cores || group.memory || group.tasks);
}

// Docker without a namespace: the mount point shows the container's group, /proc the path on the host.
TEST_F(ControlGroupTest, MountOfOwnGroup) {
    version_1("/docker/abc", "/docker/abc");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(60 * kMiB) + "\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    EXPECT_EQ(read().memory->limit, 60 * kMiB);
    EXPECT_EQ(read().cores->cores, 2);
    version_1("/docker/abc/inner", "/docker/abc");
    put("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", std::to_string(30 * kMiB) + "\n");
    EXPECT_EQ(read().memory->limit, 30 * kMiB);
    version_1("/docker/other", "/docker/abc");  // not below the mounted folder
    EXPECT_EQ(read().memory->limit, 60 * kMiB);
}

TEST_F(ControlGroupTest, Version1FollowsHierarchy) {
    version_1("/outer/job");
    put("sys/fs/cgroup/memory/outer/job/memory.limit_in_bytes", std::to_string(90 * kMiB) + "\n");
    put("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", std::to_string(50 * kMiB) + "\n");
    put("sys/fs/cgroup/memory/outer/memory.use_hierarchy", "1\n");
    EXPECT_EQ(read().memory->limit, 50 * kMiB);
    put("sys/fs/cgroup/memory/outer/memory.use_hierarchy", "0\n");
    EXPECT_EQ(read().memory->limit, 90 * kMiB);
    // The outer group is not visible.
    version_1("/outer/job", "/outer/job");
    put("sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit " + std::to_string(40 * kMiB) + "\n");
    EXPECT_EQ(read().memory->limit, 40 * kMiB);
}

TEST_F(ControlGroupTest, Namespaces) {
    version_2("/");  // own namespace
    put("sys/fs/cgroup/cpu.max", "100000 100000\n");
    put("sys/fs/cgroup/job/cpu.max", "10000 100000\n");  // another container
    put("sys/fs/cpu.max", "10000 100000\n");             // not a group
    EXPECT_EQ(read().cores->cores, 1);
    version_2("/../../other", "/");
    EXPECT_EQ(read().cores->cores, 1);
    version_2("/", "/../..");
    EXPECT_EQ(read().cores->cores, 1);
}

TEST_F(ControlGroupTest, BothVersionsTogether) {
    put("proc/self/cgroup", "4:memory:/job\n2:cpu:/\n0::/unified.slice\n");
    put("proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(60 * kMiB) + "\n");
    put("sys/fs/cgroup/unified/unified.slice/cpu.max", "100000 100000\n");
    put("sys/fs/cgroup/unified/unified.slice/memory.max", std::to_string(70 * kMiB) + "\n");
    EXPECT_EQ(read().cores->cores, 1);
    EXPECT_EQ(read().memory->limit, 60 * kMiB);
}

// A container without a mount of its files, such as with lxcfs or a bind mount.
TEST_F(ControlGroupTest, DefaultPathWithoutMount) {
    put("sys/fs/cgroup/cpu.max", "100000 100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(60 * kMiB) + "\n");
    EXPECT_EQ(read().cores->cores, 1);
    EXPECT_EQ(read().memory->limit, 60 * kMiB);
}

TEST_F(ControlGroupTest, MountPointWithSpace) {
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
    put("my groups/pids.max", "7\n");
    ASSERT_TRUE(read().tasks);
    EXPECT_EQ(read().tasks->source, "/my groups/pids.max");
}

TEST_F(ControlGroupTest, DamagedFilesSetNoLimit) {
    EXPECT_FALSE(read().cores);  // no files at all
    put("proc/self/cgroup", "0\n::\n4:memory\n:::::\n\n0::/a/../../..\n");
    put("proc/self/mountinfo",
        "-\n - \n1 2 3 - cgroup2\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    for (const char* text :
         {"", "\n", "x 100000\n", "-5 100000\n", "0 100000\n", "100000 0\n", "100000 x\n", "1e5 1\n"}) {
        put("sys/fs/cgroup/cpu.max", text);
        EXPECT_FALSE(read().cores) << text;
    }
    for (const char* text : {"", "max\n", "-1\n", "12 MB\n", "99999999999999999999999\n", "\1\2"}) {
        put("sys/fs/cgroup/memory.max", text);
        put("sys/fs/cgroup/pids.max", text);
        EXPECT_FALSE(read().memory || read().tasks) << text;
    }
}

TEST_F(ControlGroupTest, ReadsGroupsOfThisProcess) {
    const ControlGroup group = read_control_group();
    if (group.cores) {
        EXPECT_GT(group.cores->cores, 0);
    }
    if (group.memory) {
        EXPECT_GT(group.memory->left, 0);
    }
    if (group.tasks) {
        EXPECT_GT(group.tasks->limit, 0);
    }
}

}  // namespace speedrun::testing::control_group_test
