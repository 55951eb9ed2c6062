// Package deploy holds what an operator installs besides the binary: units of
// systemd, a container file and a compose file, manifests of Kubernetes, advice for
// sysctl, a dashboard and alerts. It owns no Go code but tests, which hold all of it
// against the binary: that every flag, variable, key, port, page and metric that is
// named there exists, that times fit together, and that the files are of the form
// that their readers want.
//
// [README.md] is the operator's tour.
//
// Tools are used where they are there (systemd-analyze, kubectl, promtool), for the
// forms that they know better; nothing else rests on them. Nothing is started but
// the binary, and nothing is fetched.
//
// [README.md]: README.md
package deploy
