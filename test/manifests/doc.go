// Package manifests holds what deploy/ gives to Kubernetes against the types of
// its API. It is a module of its own: the product does not need them.
package manifests
