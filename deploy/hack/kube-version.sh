#!/usr/bin/env bash
# kube-version.sh VERSION: moves go.mod to another Kubernetes version.
#
#   deploy/hack/kube-version.sh v1.37.3
#
# Kubernetes' own go.mod names its staging modules (k8s.io/api, k8s.io/client-go,
# ...) as v0.0.0, so whoever imports k8s.io/kubernetes must replace each of them
# by the version that was published with it: v1.X.Y goes with v0.X.Y. The list of
# modules changes from minor to minor; this script takes it from the go.mod of the
# version asked for, so that a bump is this one command and a reading of the diff.
#
# It rewrites go.mod and go.sum of the module it stands in, or of the module in
# the current directory when MODULE_DIR=. is set.
set -euo pipefail

die() {
  echo "kube-version.sh: $*" >&2
  exit 1
}

[[ $# -eq 1 ]] || die "usage: deploy/hack/kube-version.sh v1.MINOR.PATCH"
version=$1
[[ $version =~ ^v1\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?$ ]] ||
  die "$version: not a Kubernetes version like v1.37.3"
staging=v0.${version#v1.}

cd "${MODULE_DIR:-"$(dirname "${BASH_SOURCE[0]}")/../.."}"
[[ -f go.mod ]] || die "$PWD: no go.mod here"

# go mod download needs no go.mod that resolves, and is run away from ours so that
# a half-done bump does not stand in its way.
download=$(cd / && GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@$version") ||
  die "downloading k8s.io/kubernetes@$version: $(sed -n 's/^[[:space:]]*"Error": "\(.*\)",*$/\1/p' <<<"$download" | sed 's/\\n.*//')"
upstream=$(sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",*$/\1/p' <<<"$download")
[[ -f $upstream ]] || die "k8s.io/kubernetes@$version: no go.mod in the module cache"

modules=()
while read -r module; do
  modules+=("$module")
done < <(sed -n 's/^[[:space:]]*\(k8s\.io\/[^ ]*\) v0\.0\.0$/\1/p' "$upstream" | LC_ALL=C sort)
((${#modules[@]} > 0)) || die "$upstream: requires no k8s.io module as v0.0.0"
godebug=$(sed -n 's/^godebug default=\(go[0-9.]*\)$/\1/p' "$upstream")

edits=("-require=k8s.io/kubernetes@$version")
[[ -z $godebug ]] || edits+=("-godebug=default=$godebug")

# What is required by a real version must follow, or going back to an older
# Kubernetes would leave the newer number standing.
for module in "${modules[@]}"; do
  if grep -qE "^[[:space:]]*(require )?$module v0\.[1-9]" go.mod; then
    edits+=("-require=$module@$staging")
  fi
done

# The old list goes as a whole, with what this version no longer has.
while read -r module; do
  edits+=("-dropreplace=$module")
done < <(sed -nE 's/^(replace)?[[:space:]]*(k8s\.io\/[^ ]*) => \2 v0\..*$/\2/p' go.mod)

go mod edit "${edits[@]}"
{
  echo
  echo "replace ("
  for module in "${modules[@]}"; do printf '\t%s => %s %s\n' "$module" "$module" "$staging"; done
  echo ")"
} >>go.mod
go mod edit -fmt
go mod tidy
echo "go.mod: Kubernetes $version, ${#modules[@]} staging modules at $staging"
