# Packets of all modes between two links over a network that loses, doubles and reorders; godot_test.go runs it.
extends SceneTree

const Link = preload("../ferry_link.gd")
const PACKETS = 400 # of each of three channels: its numbers pass 65535 in none, so that some begin near it

var random = RandomNumberGenerator.new()

func _init():
	random.seed = int(OS.get_environment("FERRY_SEED"))
	var a = Link.new()
	var b = Link.new()
	for channel in range(3): # as after many packets
		a._next_out[channel << 8 | Link.RELIABLE] = 65500
		b._expected[channel] = 65500
		a._next_out[channel << 8 | Link.ORDERED] = 65500
	var flying = [] # [at, to, datagram]
	var sent = 0
	var got = [0, 0, 0]
	var ordered = [-1, -1, -1]
	var counts = {}
	var now = 0
	while now < 600000 and (got.min() < PACKETS or sent < PACKETS):
		now += 10
		if sent < PACKETS:
			for channel in range(3):
				if a.send(channel, Link.RELIABLE, content(channel, sent, size(sent))) != OK:
					return fail("the queue is full")
				a.send(channel, Link.ORDERED, content(channel, sent, 20))
				a.send(channel, Link.UNRELIABLE, content(channel, sent, 20))
			sent += 1
		for pair in [[a, b], [b, a]]:
			for d in pair[0].due(now):
				for copy in range(2 if random.randf() < 0.1 else 1):
					if random.randf() >= 0.3:
						flying.append([now + random.randi() % 100, pair[1], d])
		var later = []
		for f in flying:
			if f[0] > now:
				later.append(f)
				continue
			for packet in f[1].take(f[2]):
				var channel = packet[0]
				counts[packet[1]] = counts.get(packet[1], 0) + 1
				if packet[1] == Link.RELIABLE:
					if packet[2] != content(channel, got[channel], size(got[channel])):
						return fail("channel %d, packet %d: %d bytes" % [channel, got[channel], packet[2].size()])
					got[channel] += 1
				elif packet[1] == Link.ORDERED:
					var number = packet[2][1] | packet[2][2] << 8
					if number <= ordered[channel]:
						return fail("ordered %d after %d" % [number, ordered[channel]])
					ordered[channel] = number
		flying = later
	if got != [PACKETS, PACKETS, PACKETS]:
		return fail("it gets %s" % [got])
	if a.send(0, Link.UNRELIABLE, content(0, 0, Link.MAX_UNRELIABLE + 1)) == OK:
		return fail("it takes an unreliable packet that is too large")
	print("link ok ", counts[Link.RELIABLE], " reliable, ", counts[Link.ORDERED], " ordered, ", counts[Link.UNRELIABLE], " unreliable in ", now, " ms")
	quit()

func fail(text):
	print("link wrong: ", text)
	quit()

func size(number):
	return 3 + (number * 37) % 200 if number % 10 != 0 else 5000

func content(channel, number, size):
	var all = PoolByteArray([channel, number & 0xFF, number >> 8])
	all.resize(size)
	for i in range(3, min(size, 40)):
		all[i] = (i * 7 + number) & 0xFF
	for i in range(40, size): # resize leaves what was there
		all[i] = 9
	return all
