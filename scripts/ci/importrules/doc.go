// Package importrules tests rules that hold for the whole repository: which package
// may import which, where package unsafe and raw system calls are used, and that
// every exported name is documented and can be looked up. Each failure prints the reason of the rule.
package importrules
