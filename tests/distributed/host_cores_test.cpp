// Ranks of one host share its cores.
#include "train/comm/host_cores.h"

#include <gtest/gtest.h>

namespace speedrun::testing::host_cores_test {

TEST(HostCoresTest, DividesCores) {
    const CoreSet all{"a", {0, 1, 2, 3, 4, 5, 6, 7}}, elsewhere{"b", {0, 1, 2, 3}};
    EXPECT_EQ(share_of_cores({all}, 0), 8);
    EXPECT_EQ(share_of_cores({all, all, all}, 1), 2);  // 8/3
    EXPECT_EQ(share_of_cores({all, elsewhere, all, elsewhere}, 1), 2);
    // Bound to own cores, or to half of the host each.
    EXPECT_EQ(share_of_cores({{"a", {0, 1}}, {"a", {2, 3}}}, 1), 2);
    const CoreSet low{"a", {0, 1, 2, 3}}, high{"a", {4, 5, 6, 7}};
    EXPECT_EQ(share_of_cores({low, low, high, high}, 3), 2);
    // Three ranks on three cores: one core each.
    const CoreSet three{"a", {0, 1, 2}};
    EXPECT_EQ(share_of_cores({three, three, three}, 2), 1);
    // More ranks than cores, and a host without a reported core set.
    const CoreSet one{"a", {5}};
    EXPECT_EQ(share_of_cores({one, one, one}, 0), 1);
    EXPECT_EQ(share_of_cores({{"a", {}}}, 0), 1);
}

// Limits of control groups and of the shell are shared like cores.
TEST(HostCoresTest, DividesLimits) {
    const std::vector<int> cores{0, 1, 2, 3, 4, 5, 6, 7};
    const CoreSet limited{"a", cores, 2.5}, few{"a", cores, 0, 30}, elsewhere{"b", cores};
    EXPECT_EQ(share_of_cores({limited}, 0), 3);
    EXPECT_EQ(share_of_cores({limited, limited}, 0), 1);
    EXPECT_EQ(share_of_cores({limited, elsewhere}, 0), 3);
    EXPECT_EQ(share_of_cores({limited, elsewhere}, 1), 8);
    EXPECT_EQ(share_of_cores({few}, 0), 8);
    EXPECT_EQ(share_of_cores({few, few}, 1), 3);  // 15 tasks each, 12 of them not for loops
}

TEST(HostCoresTest, ReportsCoresOfThisProcess) {
    EXPECT_FALSE(available_cores().host.empty());
    EXPECT_FALSE(available_cores().cores.empty());
}

}  // namespace speedrun::testing::host_cores_test
