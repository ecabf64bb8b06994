#!/usr/bin/env bash
# govulncheck, with the database of vuln.go.dev, or where that cannot be reached
# one built from the module golang.org/x/vulndb, which the module proxy has.
# Findings in modules fail. Findings in the standard library alone are the
# machine's Go, which a newer one mends: they are named, and do not fail.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${TOOLS:?}" "${GO:=go}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
db=https://vuln.go.dev
if ! curl -sfm 10 $db/index/db.json >/dev/null; then
	db=file://$TOOLS/vulndb
	if [ ! -s "$TOOLS/vulndb/index/db.json" ]; then
		module=$($GO mod download -json golang.org/x/vulndb@latest)
		version=$(sed -n 's/.*"Version": "\(.*\)",/\1/p' <<<"$module")
		mkdir "$work/r"
		cp -r "$(sed -n 's/.*"Dir": "\(.*\)",/\1/p' <<<"$module")/data" "$work/r/"
		chmod -R u+w "$work/r"
		(cd "$work/r" && git init -q && git add -A && git -c user.name=vulndb -c user.email=vulndb@localhost commit -qm data)
		GOBIN=$work $GO install "golang.org/x/vulndb/cmd/gendb@$version"
		"$work/gendb" -repo "$work/r" -out "$work/out" >/dev/null 2>&1
		rm -rf "$TOOLS/vulndb" && mv "$work/out" "$TOOLS/vulndb"
	fi
	echo "database: golang.org/x/vulndb, $(sed -n 's/.*"modified":"\([^"]*\)".*/\1/p' "$TOOLS/vulndb/index/db.json")"
fi
if $GO run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -db "$db" ./... >"$work/said"; then
	echo "nothing found"
elif grep -qE '^Your code is affected by [0-9]+ vulnerabilit(y|ies) from the Go standard library\.' "$work/said"; then
	echo "$(grep -E '^Your code is affected' "$work/said") Build with a newer Go than $($GO env GOVERSION): $(grep -oE 'Fixed in: .*@go[0-9.]+' "$work/said" | grep -oE 'go[0-9.]+$' | sort -Vu | tail -1) has all fixes."
else
	cat "$work/said"
	exit 1
fi
