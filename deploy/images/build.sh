#!/usr/bin/env bash
# Builds the images from the programs in bin/, without any registry, as OCI archives:
#   build.sh [IMAGE...]     (default: all)
# makes bin/images/IMAGE.tar with the image localhost/IMAGE:VERSION in it. `make images`
# builds the programs first. Needs buildah, and no daemon.
#   VERSION   the tag (default dev, which is what the manifests name)
#   OUT       where the archives go (default bin/images)
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${VERSION:-dev}
out=${OUT:-bin/images}
images=("$@")
if [ ${#images[@]} = 0 ]; then
	images=(trigate-gateway trigate-authn trigate-authz trigate-admission kube-controller-manager etcd)
fi
command -v buildah >/dev/null || { echo "build.sh: buildah is missing: apt-get install buildah" >&2; exit 1; }

mkdir -p "$out"
# Storage of its own, so that nothing is left behind. There are no layers to share,
# and vfs works in a container, too.
storage=$(mktemp -d)
trap 'rm -rf "$storage"' EXIT
buildah() {
	command buildah --storage-driver vfs --root "$storage/root" --runroot "$storage/run" "$@"
}
for image in "${images[@]}"; do
	name=localhost/$image:$version
	echo "building $name"
	# The time is that of the commit, so that the same programs make the same image.
	buildah bud --quiet --isolation chroot --pull-never --target "$image" \
		--build-arg SOURCE=local --build-arg "PROGRAM=$image" \
		--timestamp "$(git log -1 --format=%ct 2>/dev/null || echo 0)" \
		--file deploy/images/Dockerfile --tag "$name" . >/dev/null
	rm -f "$out/$image.tar"
	buildah push --quiet --disable-compression "$name" "oci-archive:$out/$image.tar:$name"
	buildah rmi --all --force >/dev/null
done
