# Reads lines of a datagram and a key in hex from a file; prints the fields, and the bytes encoded again. It is run by
# godot_test.go with the file's name.
extends SceneTree

const Message = preload("../ferry_message.gd")

func _init():
	var file = File.new()
	file.open(OS.get_environment("FERRY_VECTORS"), File.READ)
	while not file.eof_reached():
		var words = file.get_line().split(" ")
		if words.size() == 2:
			print("vector ", describe(bytes(words[0]), bytes(words[1])))
	quit()

func describe(pkt, key):
	var m = Message.decode(pkt)
	if m.empty():
		return "none"
	for size in range(pkt.size()):
		var short = Message.decode(Message.part(pkt, 0, size))
		if not short.empty() and m.type != Message.REJECTED:
			return "it takes %d of %d bytes" % [size, pkt.size()]
	var long = PoolByteArray(pkt)
	long.append(0)
	if not Message.decode(long).empty() and m.type != Message.REJECTED:
		return "it takes a byte more"
	return PoolStringArray([m.type, hex(m.get("from")), hex(m.get("to")), m.get("number", 0), m.get("mode", 0),
		m.get("code", 0), hex(m.get("data")), hex(Message.encode(m, key))]).join(" ")

func hex(bytes):
	return bytes.hex_encode() if bytes != null and bytes.size() > 0 else "-"

func bytes(text):
	var all = PoolByteArray()
	for i in range(0, text.length(), 2):
		all.append(("0x" + text.substr(i, 2)).hex_to_int())
	return all
