// Package importrules tests rules that hold for the whole repository: which package
// may import which, where package unsafe and raw system calls are used, and that
// every exported name is documented. Each failure prints the reason of the rule.
package importrules
