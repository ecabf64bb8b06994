// Package deploy holds what a fleet needs around the binaries: the systemd
// unit, the package description, example configurations, Prometheus rules, a
// Grafana dashboard and Kubernetes manifests. Its test holds them to the code:
// every metric that is named exists, every configuration is one the node takes.
package deploy
