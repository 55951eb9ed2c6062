# Reliable, unreliable and ordered packets in channels, over the datagrams of one peer. It does no I/O and has no clock:
# send what due() returns, and give each datagram of the peer to take(). Both sides use it; the format is its own.
#
# A datagram is: mode (or ACK), channel, number (2 bytes, little-endian; not for UNRELIABLE), for RELIABLE whether it is
# the last part of its packet, and data.

enum {UNRELIABLE, ORDERED, RELIABLE, ACK}

const PART = 1200          # bytes of a reliable packet in a datagram
const MAX_UNRELIABLE = 1390
const MAX_PACKET = 1 << 20
const WINDOW = 64          # parts on their way, in each channel
const MAX_QUEUE = 4096     # parts
const FIRST_RETRY = 250    # ms; doubled up to
const LAST_RETRY = 2000

var broken = false # the peer has sent what it must not

var _queued = {}   # by channel: parts, oldest first: [datagram, number, sends, next]
var _next_out = {} # by channel and mode
var _newest = {}   # of ORDERED, by channel
var _expected = {} # of RELIABLE, by channel
var _early = {}    # by channel: datagrams by number
var _partial = {}  # by channel
var _out = []

# Returns OK or an error; channel is 0 to 255.
func send(channel, mode, data):
	if mode != RELIABLE:
		if data.size() > MAX_UNRELIABLE:
			return ERR_INVALID_PARAMETER
		_out.append(_datagram(mode, channel, _number(channel, mode) if mode == ORDERED else -1, PoolByteArray(), data))
		return OK
	var parts = int(max(1, (data.size() + PART - 1) / PART))
	if data.size() > MAX_PACKET:
		return ERR_INVALID_PARAMETER
	var queue = _queued.get(channel, [])
	if queue.size() + parts > MAX_QUEUE:
		return ERR_OUT_OF_MEMORY
	for i in range(parts):
		var number = _number(channel, mode)
		var last = PoolByteArray([1 if i == parts - 1 else 0])
		queue.append([_datagram(mode, channel, number, last, _slice(data, i * PART, (i + 1) * PART)), number, 0, 0])
	_queued[channel] = queue
	return OK

# Returns the datagrams that are to be sent now.
func due(now):
	for channel in _queued:
		var queue = _queued[channel]
		for i in range(min(WINDOW, queue.size())):
			var part = queue[i]
			# The window ends that far behind the oldest part without an ACK.
			if (part[1] - queue[0][1]) & 0xFFFF >= WINDOW:
				break
			if part[2] > 0 and now < part[3]:
				continue
			part[3] = now + min(LAST_RETRY, FIRST_RETRY << int(min(part[2], 3)))
			part[2] += 1
			_out.append(part[0])
	var out = _out
	_out = []
	return out

# Takes a datagram, and returns the packets that it completes: [channel, mode, data].
func take(d):
	if d.size() < 2 or d[0] > ACK or d[0] != UNRELIABLE and d.size() < 4:
		return []
	var mode = d[0]
	var channel = d[1]
	if mode == UNRELIABLE:
		return [[channel, mode, _slice(d, 2, d.size())]]
	var number = d[2] | d[3] << 8
	if mode == ORDERED:
		if _newest.has(channel) and (number - _newest[channel] - 1) & 0xFFFF >= 0x8000:
			return []
		_newest[channel] = number
		return [[channel, mode, _slice(d, 4, d.size())]]
	if mode == ACK:
		_on_ack(channel, number)
		return []
	return _on_reliable(channel, number, d) if d.size() >= 5 else []

func _on_ack(channel, number):
	var queue = _queued.get(channel, [])
	for i in range(min(WINDOW, queue.size())):
		if queue[i][1] == number and queue[i][2] > 0:
			queue.remove(i)
			return

func _on_reliable(channel, number, d):
	var expected = _expected.get(channel, 0)
	var ahead = (number - expected) & 0xFFFF
	if ahead >= WINDOW and ahead < 0x8000:
		return []
	_out.append(_datagram(ACK, channel, number, PoolByteArray(), PoolByteArray()))
	if ahead >= 0x8000:
		return [] # It came before.
	var early = _early.get(channel, {})
	_early[channel] = early
	early[number] = d
	var packets = []
	while early.has(expected):
		var part = early[expected]
		early.erase(expected)
		expected = (expected + 1) & 0xFFFF
		var whole = PoolByteArray(_partial.get(channel, PoolByteArray()))
		whole.append_array(_slice(part, 5, part.size()))
		if whole.size() > MAX_PACKET:
			broken = true
			return packets
		if part[4] == 1:
			packets.append([channel, RELIABLE, whole])
			whole = PoolByteArray()
		_partial[channel] = whole
	_expected[channel] = expected
	return packets

func _number(channel, mode):
	var key = channel << 8 | mode
	var number = _next_out.get(key, 0)
	_next_out[key] = (number + 1) & 0xFFFF
	return number

func _datagram(mode, channel, number, head, data):
	var d = PoolByteArray([mode, channel])
	if number >= 0:
		d.append_array(PoolByteArray([number & 0xFF, number >> 8]))
	d.append_array(head)
	d.append_array(data)
	return d

# Bytes from, to (without it).
static func _slice(bytes, from, to):
	to = int(min(to, bytes.size()))
	return bytes.subarray(from, to - 1) if from < to else PoolByteArray()
