#!/bin/bash
# Runs the tests of rdma/verbs, and pdnode demo over verbs, on kernel verbs
# without a card: a stock Debian kernel with Soft-RoCE under QEMU's software CPU.
# No KVM, no network in the machine; root rights only to install what is missing.
#
#   test/rxe/run.sh            all tests, then the demo
#   RXE_RUN=TestPartialPost RXE_ROUNDS=20 RXE_DEMO= test/rxe/run.sh
#
# RXE_RUN     which tests (default: all); empty: none
# RXE_ROUNDS  revocations in the middle of a stream, by each method (default 100)
# RXE_DEMO    flags of the demo (default: 20 small requests); empty: no demo
# RXE_FAULTS  flags of a second one (default: the same with late, hanging and
#             partial writes and half of the requests aborted); empty: none
# RXE_DIR     where the kernel and the machine are kept (default .tools/rxe)
# RXE_TIMEOUT seconds for the life of one machine (default 600)
#
# The tests have a machine with two processors on two threads, so that a fence
# and what it fences meet as they do on hardware. The demo has one whose clock
# counts instructions: an emulated processor is some fifty times slower than a
# real one, and time limits that count the host's time would measure how busy
# the host is.
#
# Prints "SKIP rxe: reason" and ends well where QEMU or the kernel cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${RXE_DIR:-$PWD/.tools/rxe}
limit=${RXE_TIMEOUT:-600}
run=${RXE_RUN-.}
rounds=${RXE_ROUNDS:-100}
demo=${RXE_DEMO---requests 20 --bytes-per-token 16}
faults=${RXE_FAULTS---requests 20 --bytes-per-token 16 --abort-percent 50 --fault late:2s:20%,hang:5%,partial:1s:5%}
modules="crc32_generic udp_tunnel ip6_udp_tunnel configfs ib_core ib_uverbs ib_cm iw_cm rdma_cm rdma_ucm rdma_rxe dummy veth"

skip() { echo "SKIP rxe: $*"; exit 0; }

# ---- packages

missing=""
for p in qemu-system-x86 busybox-static cpio kmod iproute2 libibverbs-dev ibverbs-providers; do
	dpkg -s "$p" >/dev/null 2>&1 || missing="$missing $p"
done
if [ -n "$missing" ]; then
	command -v apt-get >/dev/null || skip "not on Debian, and these are missing:$missing"
	sudo=""
	[ "$(id -u)" = 0 ] || sudo="sudo -n"
	echo "installing$missing"
	$sudo apt-get update -qq || true
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
		skip "cannot install$missing"
fi
[ "$(uname -m)" = x86_64 ] || skip "the machine is made for x86_64, this is $(uname -m)"

# ---- kernel: downloaded and unpacked, not installed

mkdir -p "$dir"
if ! ls "$dir"/rootfs/boot/vmlinuz-* >/dev/null 2>&1; then
	pkg=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
	[ -n "$pkg" ] || skip "no kernel package is known to apt"
	(cd "$dir" && rm -f ./*.deb && apt-get download "$pkg" >/dev/null 2>&1) || skip "cannot download $pkg"
	rm -rf "$dir/rootfs.new"
	dpkg -x "$dir"/"$pkg"_*.deb "$dir/rootfs.new"
	rm -rf "$dir/rootfs" "$dir"/*.deb
	mv "$dir/rootfs.new" "$dir/rootfs"
fi
vmlinuz=$(ls "$dir"/rootfs/boot/vmlinuz-* | head -1)
release=${vmlinuz##*/vmlinuz-}

# ---- initramfs

ird=$dir/ird
rm -rf "$ird"
mkdir -p "$ird"/{bin,dev,proc,sys,tmp,mods,etc/libibverbs.d}
go test -c -tags verbs -o "$ird/bin/verbs.test" ./rdma/verbs
bins="$ird/bin/verbs.test"
if [ -n "$demo" ]; then
	go build -tags verbs -ldflags '-s -w' -o "$ird/bin/pdnode" ./cmd/pdnode
	bins="$bins $ird/bin/pdnode"
fi
cp "$(command -v busybox)" "$ird/bin/busybox"
for a in sh mount insmod sleep cat ls echo poweroff ps kill timeout env grep mkdir rm; do ln -s busybox "$ird/bin/$a"; done
for tool in ip rdma; do
	src=$(PATH=$PATH:/sbin:/usr/sbin command -v $tool) || skip "iproute2 has no $tool"
	cp -L "$src" "$ird/bin/$tool"
done
driver=$(find /usr/lib -path '*/libibverbs/librxe-rdmav*.so' | head -1)
[ -n "$driver" ] || skip "ibverbs-providers has no driver for rxe"
mkdir -p "$ird$(dirname "$driver")"
cp -L "$driver" "$ird$driver"
echo "driver rxe" >"$ird/etc/libibverbs.d/rxe.driver"
for bin in $bins "$ird/bin/ip" "$ird/bin/rdma" "$driver"; do
	ldd "$bin" | grep -oE '/[^ ]+' | while read -r lib; do
		mkdir -p "$ird$(dirname "$lib")"
		cp -nL "$lib" "$ird$lib"
	done
done
for m in $modules; do
	ko=$(find "$dir/rootfs/lib/modules/$release" -name "$m.ko*" | head -1)
	[ -n "$ko" ] || skip "kernel $release has no module $m"
	cp "$ko" "$ird/mods/"
done
cat >"$ird/init" <<EOF
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
for m in $modules; do insmod /mods/\$m.ko; done
/bin/ip link set lo up
/bin/ip link add v0 type veth peer name v1
/bin/ip addr add 10.77.0.1/24 dev v0
/bin/ip link set v0 mtu 4200
/bin/ip link set v1 mtu 4200
/bin/ip link set v0 up
/bin/ip link set v1 up
/bin/rdma link add rxe0 type rxe netdev v0
sleep 1
ulimit -l unlimited
echo RXE-BEGIN
run_demo() {
	/bin/pdnode demo --provider verbs "\$@" --data-dir /tmp/demo 2>/tmp/demo.err
	code=\$?
	[ \$code = 0 ] || for f in /tmp/demo.err /tmp/demo/*/*.log; do echo "== \$f"; cat \$f; done
	rm -rf /tmp/demo
}
if [ "\$RXE_PART" = demo ]; then
	run_demo $demo
	if [ \$code = 0 ] && [ -n "$faults" ]; then
		echo "the same with faults: $faults"
		run_demo $faults
	fi
else
	PDLOG_VERBS_ROUNDS=$rounds PDLOG_RDMATEST_ROUNDS=$rounds /bin/verbs.test -test.v -test.timeout ${limit}s -test.run '$run'
	code=\$?
fi
echo RXE-END \$code
poweroff -f
EOF
chmod +x "$ird/init"
(cd "$ird" && find . | cpio -o -H newc --quiet | gzip -1) >"$dir/ird.gz"

# ---- the machines

# boot PART OPTIONS...: its console is in PART.log, between the marks.
boot() {
	local part=$1 console=$dir/$1.log code
	shift
	timeout "$limit" qemu-system-x86_64 "$@" -cpu max -m 2048 -nographic -no-reboot -nic none \
		-kernel "$vmlinuz" -initrd "$dir/ird.gz" \
		-append "RXE_PART=$part console=ttyS0 quiet panic=-1 mitigations=off tsc=unstable" </dev/null >"$console" 2>&1 || true
	sed -n '/RXE-BEGIN/,/RXE-END/p' "$console" | tr -d '\r'
	code=$(tr -d '\r' <"$console" | sed -n 's/.*RXE-END \([0-9]*\).*/\1/p' | tail -1)
	if [ -z "$code" ]; then
		echo "the machine for $part did not come to its end within $limit s; the end of its console:"
		tail -20 "$console"
		return 1
	fi
	if grep -q -- '--- SKIP' "$console"; then
		echo "a test was skipped inside the machine"
		return 1
	fi
	return "$code"
}

rc=0
if [ -n "$run" ]; then
	boot suite -accel tcg,thread=multi -smp 2 || rc=1
fi
if [ -n "$demo" ]; then
	boot demo -accel tcg,thread=single -icount shift=0,sleep=off -smp 1 || rc=1
fi
echo
for part in ${run:+suite} ${demo:+demo}; do
	tr -d '\r' <"$dir/$part.log" | sed -n -e 's/.*RESULT /rxe: /p' -e 's/^ *\(requests  .*\|corrupt pages  .*\|released  .*\)/rxe: demo: \1/p' -e 's/^the same with faults.*/rxe: &/p'
done
[ $rc = 0 ] && echo "rxe: passed" || echo "rxe: FAILED"
exit $rc
