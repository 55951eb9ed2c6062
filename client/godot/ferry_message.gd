# The messages of the relay protocol over UDP; proto/doc.go has their layouts.
#
# A message is a dictionary: type, and what the type has of from, to (16 bytes each), number (of BIND its nonce),
# mode, code and data (connection data or content). Where the protocol has one id only, it is from.

enum {
	BIND = 0, BIND_RECEIVED = 1, PING = 2, CONNECT_REQUEST = 3, ACCEPTED = 6, REJECTED = 8, DISCONNECT = 9,
	RELAY = 10, CLOSE = 11, ERROR = 12
}

const ID_SIZE = 16
const KEY_SIZE = 64
const MAX_DATA = 255      # of connection data
const RELAY_HEADER = 38   # bytes of RELAY before its content
const MAX_CONTENT = 1400  # that every relay and every path takes

# Returns the message in a datagram, whose size has to be exact, or an empty dictionary. A REJECTED may have no ids,
# or a body that is not published.
static func decode(pkt):
	var size = pkt.size()
	if size < 4 or pkt[0] != 0xDA or pkt[1] != 0x72 or pkt[2] != 0:
		return {}
	var type = pkt[3]
	if type == RELAY:
		if size < RELAY_HEADER or size != RELAY_HEADER + (pkt[36] << 8 | pkt[37]):
			return {}
		return {"type": type, "from": part(pkt, 4, ID_SIZE), "to": part(pkt, 20, ID_SIZE),
			"data": part(pkt, RELAY_HEADER, size - RELAY_HEADER)}
	if type == BIND:
		if size < 8 or size != 8 + pkt[7] + 32:
			return {}
		return {"type": type, "mode": pkt[4], "number": pkt[5] | pkt[6] << 8, "data": part(pkt, 8, pkt[7])}
	if type == BIND_RECEIVED and size == 4:
		return {"type": type}
	if type == PING and size == 22:
		return {"type": type, "from": part(pkt, 4, ID_SIZE), "number": pkt[20] | pkt[21] << 8}
	if type == CONNECT_REQUEST and size >= 21 and size == 21 + pkt[20]:
		return {"type": type, "from": part(pkt, 4, ID_SIZE), "data": part(pkt, 21, pkt[20])}
	if (type == ACCEPTED or type == DISCONNECT or type == REJECTED) and size == 36:
		return {"type": type, "from": part(pkt, 4, ID_SIZE), "to": part(pkt, 20, ID_SIZE)}
	if type == REJECTED:
		return {"type": type}
	if type == CLOSE and size == 20:
		return {"type": type, "from": part(pkt, 4, ID_SIZE)}
	if type == ERROR and size == 21:
		return {"type": type, "from": part(pkt, 4, ID_SIZE), "code": pkt[20]}
	return {}

# Returns the datagram of a message. Sizes are the caller's business; BIND needs the key.
static func encode(m, key = null):
	var pkt = PoolByteArray([0xDA, 0x72, 0, m.type])
	if m.type == BIND:
		pkt.append_array(PoolByteArray([m.mode, m.number & 0xFF, m.number >> 8, m.data.size()]))
		pkt.append_array(m.data)
		pkt.append_array(hmac_sha256(key, pkt))
		return pkt
	for id in ["from", "to"]:
		if m.has(id):
			pkt.append_array(m[id])
	if m.type == PING:
		pkt.append_array(PoolByteArray([m.number & 0xFF, m.number >> 8]))
	elif m.type == CONNECT_REQUEST:
		pkt.append(m.data.size())
		pkt.append_array(m.data)
	elif m.type == RELAY:
		pkt.append_array(PoolByteArray([m.data.size() >> 8, m.data.size() & 0xFF]))
		pkt.append_array(m.data)
	elif m.type == ERROR:
		pkt.append(m.code)
	return pkt

static func hmac_sha256(key, data):
	if key.size() > 64:
		key = sha256(key, PoolByteArray())
	var inner = PoolByteArray()
	var outer = PoolByteArray()
	for i in range(64):
		var byte = key[i] if i < key.size() else 0
		inner.append(byte ^ 0x36)
		outer.append(byte ^ 0x5C)
	return sha256(outer, sha256(inner, data))

# The hash of two parts, of which the second may be empty.
static func sha256(first, second):
	var c = HashingContext.new()
	c.start(HashingContext.HASH_SHA256)
	c.update(first)
	if second.size() > 0: # An empty chunk is an error.
		c.update(second)
	return c.finish()

# Bytes of a datagram.
static func part(pkt, from, size):
	return pkt.subarray(from, from + size - 1) if size > 0 else PoolByteArray()
