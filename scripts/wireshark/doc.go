// Package wireshark has ferry.lua, a dissector for Wireshark and tshark, and its test,
// which compares the fields that tshark shows with messages that package proto and
// internal/utp encode.
package wireshark
