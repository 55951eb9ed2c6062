// Package ctl speaks with the admin pages of a running ferry on behalf of the
// operator: it asks, and shows the answer as a table, as JSON, or as the curl
// line that asks the same.
//
// It owns what an operator sees in a terminal: every table and every error of ferry
// ctl. The types of the answers are those of package operator.
package ctl
