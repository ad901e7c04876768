#!/bin/sh
# What is packed works from where it is: the tarball, unpacked, has all that README's commands need, prepares the King
# James text and trains two steps on it. The Debian package has the same files. Usage: install_test.sh BUILD_DIR VERSION
# ctest: ARGS BUILD VERSION PROPERTIES TIMEOUT 120
set -eu
build=$1 version=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $1"
    exit 1
}

cd "$work"
cpack --config "$build/CPackConfig.cmake" -B "$work/packages" >log 2>&1 || fail "$(tail -n 5 log)"
tarball=packages/speedrun-$version-$(uname -s)-$(uname -m).tar.gz
[ -s "$tarball" ] || fail "no $tarball but $(ls packages)"
tar -xzf "$tarball"
mv "speedrun-$version-$(uname -s)-$(uname -m)" prefix
for file in bin/speedrun share/doc/speedrun/README.md share/doc/speedrun/docs/quickstart.md share/doc/speedrun/CHANGELOG.md \
    share/doc/speedrun/LICENSE \
    share/speedrun/configs/kjv.json share/speedrun/scripts/report.py share/speedrun/scripts/requirements.txt \
    share/speedrun/scripts/speedrun_report/page.css; do
    [ -s "prefix/$file" ] || fail "no $file"
done
for file in data/kjv/prepare.sh data/fineweb10B/download.sh scripts/report.py; do
    [ -x "prefix/share/speedrun/$file" ] || fail "$file cannot be run"
done
(cd prefix && find . ! -type d) | sort >files
! grep -e '_tests$' -e '\.pyc$' -e '\.bin$' files || fail "that should not be packed"

# The program uses the package's libraries, but the machine's where the machine's MPI uses them too.
ldd prefix/bin/speedrun >libraries
grep libspdlog libraries | grep -q "$work/prefix/" || fail "$(cat libraries)"
if grep -q 'libmpi\.' libraries; then
    ! grep -e 'libcrypto\.' -e 'libz\.' -e 'libhwloc\.' libraries | grep "$work/prefix/" || fail "a library is packed that MPI loads"
fi

if command -v dpkg-deb >/dev/null 2>&1 && [ -e /etc/debian_version ]; then
    package=packages/speedrun_${version}_$(dpkg --print-architecture).deb
    dpkg-deb -x "$package" deb || fail "no $package"
    (cd deb/usr && find . ! -type d) | sort | diff files - || fail "the Debian package has other files than the tarball"
    [ "$(ls deb)" = usr ] || fail "the Debian package has files outside /usr: $(ls deb)"
    # Each library that is not packed comes with a package that is named.
    dpkg-deb -f "$package" Depends | tr -d ',|' | tr ' ' '\n' >named
    sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' libraries | grep -v "^$work" | while read -r library; do
        readelf -d prefix/bin/speedrun | grep -q "NEEDED.*\[$(basename "$library")\]" || continue
        owner=$(dpkg -S "*/$(uname -m)-linux-gnu/$(basename "$library")" | sed -n '1s/:.*//p')
        grep -qx -e "$owner" named || fail "$library is of $owner, which the Debian package does not depend on"
    done || exit 1
fi

prefix/bin/speedrun --version | grep -qx "speedrun $version" || fail "--version: $(prefix/bin/speedrun --version)"
prefix/bin/speedrun plan prefix/share/speedrun/configs/kjv.json >log || fail "plan: $(cat log)"
python3 -B prefix/share/speedrun/scripts/report.py --help | grep -q FOLDER || fail "the report has no help"

command -v bible >/dev/null 2>&1 || { echo "skipped: bible is missing (sudo apt install bible-kjv)"; exit 77; }
prefix/share/speedrun/data/kjv/prepare.sh prefix/bin/speedrun data/kjv >log || fail "preparing: $(cat log)"
prefix/bin/speedrun train prefix/share/speedrun/configs/kjv.json --name two --set schedule.steps=2 --set model.model_dim=64 \
    --set data.val_tokens=8192 --set batch.tokens_per_step=1024 --set batch.microbatch_tokens=1024 --set device=cpu >log ||
    fail "training: $(cat log)"
[ "$(grep -c '"event":"step"' logs/two/metrics.jsonl)" = 2 ] || fail "not two steps"
echo "the packed speedrun has trained two steps"
