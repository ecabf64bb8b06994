#!/usr/bin/env bash
# Holds what deploy/ and docs/ give to others against the tools of their trades.
# make check-packages calls it. A tool that cannot be had is named at the end; a
# tool that finds something fails.
set -uo pipefail
cd "$(dirname "$0")/.."
: "${TOOLS:?}" "${GO:=go}" "${HELM:?}" "${DEB:?}"
mkdir -p "$TOOLS"
scratch=$(mktemp -d)
trap 'kill "${node:-}" 2>/dev/null; rm -rf "$scratch"' EXIT
left=() failed=()

# check NAME CMD…: runs it, shows what it says if it fails.
check() {
	local name=$1
	shift
	if "$@" >"$scratch/out" 2>&1; then
		echo "ok    $name"
	else
		echo "FAIL  $name"
		sed 's/^/      /' "$scratch/out"
		failed+=("$name")
	fi
}
without() { left+=("$1: $2") && echo "--    $1: $2"; }

# ---- the package
if make --no-print-directory package >"$scratch/out" 2>&1; then
	echo "ok    nfpm: $DEB"
else
	echo "FAIL  nfpm package"
	sed 's/^/      /' "$scratch/out"
	failed+=(nfpm)
fi
contents() {
	dpkg-deb -x "$DEB" "$scratch/tree" || return 1
	local f
	for f in usr/bin/pdnode usr/bin/pdreplay usr/lib/systemd/system/pdnode.service etc/pdnode/pdnode.yaml \
		usr/share/man/man1/pdnode.1.gz usr/share/man/man1/pdnode-run.1.gz usr/share/man/man1/pdreplay-blame.1.gz \
		usr/share/bash-completion/completions/pdnode usr/share/zsh/vendor-completions/_pdreplay usr/share/fish/vendor_completions.d/pdnode.fish; do
		[ -s "$scratch/tree/$f" ] || { echo "$f is not in the package, or empty"; return 1; }
	done
	bash -n "$scratch/tree/usr/share/bash-completion/completions/pdnode" || return 1
	dpkg-deb -f "$DEB" Depends | grep -q libzmq5 || { echo "it does not depend on libzmq5"; return 1; }
	"$scratch/tree/usr/bin/pdnode" run --validate --config "$scratch/tree/etc/pdnode/pdnode.yaml" --node n0
}
check "dpkg-deb: the package holds programs, unit, man pages, completion, a configuration that is taken" contents

# ---- the unit, with the package's files in their places
if command -v systemd-analyze >/dev/null; then
	unit() {
		local said
		said=$(systemd-analyze verify --man=no --root="$scratch/tree" "$scratch/tree/usr/lib/systemd/system/pdnode.service" 2>&1) || { echo "$said"; return 1; }
		if grep 'pdnode.service' <<<"$said"; then return 1; fi
	}
	mkdir -p "$scratch/tree/usr/bin" "$scratch/tree/usr/lib/systemd/system"
	for u in sysinit.target basic.target network-online.target shutdown.target system.slice -.slice kill; do
		[ "$u" = kill ] && { mkdir -p "$scratch/tree/bin" && cp -L /bin/kill "$scratch/tree/bin/kill"; continue; }
		[ -e "/usr/lib/systemd/system/$u" ] && cp "/usr/lib/systemd/system/$u" "$scratch/tree/usr/lib/systemd/system/"
	done
	check "systemd-analyze verify" unit
	check "systemd-analyze security: exposure below 2.5" systemd-analyze security --offline=true --threshold=25 --root="$scratch/tree" "$scratch/tree/usr/lib/systemd/system/pdnode.service"
else
	without "systemd-analyze verify" "no systemd on this machine"
fi

# ---- alerts and metrics: promtool of Debian's package, which is not installed (it would start a server)
promtool=$(command -v promtool || true)
if [ -z "$promtool" ]; then
	promtool=$TOOLS/prometheus/usr/bin/promtool
	if [ ! -x "$promtool" ]; then
		(cd "$scratch" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; } } && dpkg-deb -x prometheus_*.deb "$TOOLS/prometheus") >/dev/null 2>&1
	fi
fi
if [ -x "$promtool" ]; then
	check "promtool check rules" "$promtool" check rules deploy/prometheus/alerts.yaml
	check "promtool test rules" "$promtool" test rules deploy/prometheus/alerts_test.yaml
	bin/pdnode run --node d0 --role decode --data-dir "$scratch/d0" --pages 16 --nats.port -1 --metrics.listen 127.0.0.1:0 --http.listen 127.0.0.1:0 --log.level error &
	node=$!
	metrics() {
		local i
		for ((i = 0; i < 300; i++)); do
			bin/pdnode status --socket "$scratch/d0/pdnode.sock" >/dev/null 2>&1 && break
			kill -0 "$node" || return 1
			read -rt 0.1 <> <(:) || true
		done
		curl -sf --unix-socket "$scratch/d0/pdnode.sock" http://node/metrics >"$scratch/metrics" || return 1
		[ "$(grep -c '^# TYPE pdnode_' "$scratch/metrics")" -ge 25 ] || { echo "too few metrics"; return 1; }
		grep -E '^(# (TYPE|HELP) )?pdnode_' "$scratch/metrics" | "$promtool" check metrics
	}
	check "promtool check metrics, of a live node" metrics
	kill "$node" 2>/dev/null
	wait "$node" 2>/dev/null
	node=
else
	without "promtool" "Debian's package prometheus cannot be downloaded"
fi

# ---- the chart, and the manifests by the types of the Kubernetes API
make --no-print-directory "$HELM" >"$scratch/out" 2>&1 || true
if [ -x "$HELM" ]; then
	check "helm lint --strict" "$HELM" lint --strict deploy/helm/pdnode
	check "manifests and the rendered chart decode strictly" env -C test/manifests HELM="$HELM" "$GO" test -count=1 ./...
else
	without "helm lint" "helm.sh/helm/v3 cannot be built: $(tail -1 "$scratch/out")"
	check "manifests decode strictly" env -C test/manifests HELM= "$GO" test -count=1 ./...
fi
if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
	check "docker build" docker build -q -f deploy/docker/Dockerfile .
else
	without "docker build" "no Docker daemon here; a test holds the Dockerfile's paths"
fi

# ---- the subjects on NATS
if command -v npm >/dev/null; then
	asyncapi=$TOOLS/asyncapi
	[ -d "$asyncapi/node_modules/@asyncapi/parser" ] || npm install --silent --no-audit --no-fund --prefix "$asyncapi" @asyncapi/parser@3.6.6 >"$scratch/out" 2>&1
	if [ -d "$asyncapi/node_modules/@asyncapi/parser" ]; then
		check "AsyncAPI parser" env NODE_PATH="$asyncapi/node_modules" node deploy/asyncapi.js docs/asyncapi.yaml
	else
		without "AsyncAPI parser" "npm cannot install @asyncapi/parser: $(tail -1 "$scratch/out")"
	fi
else
	without "AsyncAPI parser" "no npm on this machine"
fi

# ---- the Python client says that it is typed
if command -v mypy >/dev/null; then
	for what in pdlog "tests examples"; do
		# shellcheck disable=SC2086 # words
		check "mypy --strict: clients/python, $what" env -C clients/python mypy --strict --python-version 3.10 --cache-dir "$scratch/mypy" $what
	done
else
	without mypy "Debian's package mypy is not installed"
fi

# ---- known vulnerabilities
check govulncheck make --no-print-directory vuln
sed -n 's/^Your code/      the code/p' "$scratch/out"

echo
for l in "${left[@]}"; do echo "left out: $l"; done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}"
	exit 1
fi
