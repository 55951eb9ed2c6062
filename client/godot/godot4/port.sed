# The names that differ between Godot 3 and Godot 4. What it makes has not been run.
s/PoolByteArray/PackedByteArray/g
s/\.subarray(from, from + size - 1)/.slice(from, from + size)/
s/\.subarray(from, to - 1)/.slice(from, to)/
s/OS\.get_ticks_msec/Time.get_ticks_msec/g
s/\.empty()/.is_empty()/g
s/queue\.remove(/queue.remove_at(/
s/find_last(/rfind(/
s/JSON\.print(/JSON.stringify(/
s/JSON\.parse(\(.*\))\.result/JSON.parse_string(\1)/
s/connect_to_host(_host, _port, _tls, _tls)/connect_to_host(_host, _port, TLSOptions.client() if _tls else null)/
