"""scripts/to_tensorboard.py: the event files have exactly the values of metrics.jsonl.
Usage: tensorboard_test.py SPEEDRUN. Skipped (77) where the packages of scripts/requirements.txt are missing."""

import struct
import sys
import unittest

from converters import Converter
from made_runs import ROOT, WorkTest, copy_run, make_runs, require

require("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


class ToTensorBoardTest(Converter, WorkTest):
    SCRIPT, DELTA_S = "to_tensorboard.py", 1e-6  # seconds since 1970 as a double

    @classmethod
    def set_up(cls):
        cls.logs = make_runs(sys.argv[1], cls.work, sys.argv[2] if len(sys.argv) > 2 else "")
        cls.first, cls.second = cls.logs / "narrow-s1", cls.logs / "wide-s2"

    def read(self, out):
        runs = {}
        for folder in {file.parent for file in out.rglob("events*")}:
            accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: all of them
            accumulator.Reload()
            runs[str(folder.relative_to(out))] = {
                (tag, event.step): (event.value, event.wall_time)
                for tag in accumulator.Tags()["scalars"]
                for event in accumulator.Scalars(tag)
            }
        return runs

    def stored(self, expected):
        """TensorBoard's scalars have 32 bits."""
        return {key: (struct.unpack("f", struct.pack("f", value))[0], time) for key, (value, time) in expected.items()}

    def test_every_value_comes_back(self):
        self.every_value(sorted(self.logs.iterdir()), [self.logs], "exists and is not overwritten", 1000)

    def test_damage_and_bad_usage(self):
        broken = self.damaged()
        self.refused(3, "broken/metrics.jsonl:1", broken)
        readme = ROOT / "logs" / "README.md"  # matched by logs/*
        self.ended(self.convert(readme, self.second, "--out", self.work / "pattern"), 0, "README.md: is no folder")
        self.assertEqual(list(self.read(self.work / "pattern")), [self.second.name])
        self.refused(2, "README.md: is no folder", readme)
        self.refused(2, "no/such: no such folder", "no/such")
        self.refused(2, "would both go to", self.second, copy_run(self.second, f"../elsewhere/{self.second.name}"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
