// Package kubernetes holds the tests over the manifests beside it: that what they start
// is configured as their programs expect, and may do what it needs and no more.
package kubernetes
