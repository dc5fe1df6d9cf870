// Package node holds the tests that need a real Kubernetes node: kubelet, containerd
// and kube-proxy, which run the manifests of deploy/kubernetes as pods, or are the
// cluster whose API server Trigate is.
//
// They run as root on a machine with the packages that requirements names, and take
// some minutes: `make test-node`.
package node
