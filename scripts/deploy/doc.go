// Package deploy contains the deployment files for operators: systemd units, a
// container file and a compose file, Kubernetes manifests, sysctl settings, a
// dashboard and alerts. Its only Go code is tests, which check these files against
// the binary: that every named flag, variable, key, port and page exists,
// that time-outs match, and that the files are well-formed. scripts/helm tests the
// manifests, the dashboard and the alerts, with libraries of Kubernetes and PromQL.
//
// [README.md] is the guide for operators.
//
// The tests use systemd-analyze and kubectl if they are installed. They
// start only the ferry binary and download nothing.
//
// [README.md]: README.md
package deploy
