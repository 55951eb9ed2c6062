// What internal/test/blackbox runs in Chromium, bundled from the installed package.

import { Allocations, Connection } from "@ferryrelay/client"

/** Joins a host that returns each message, and returns what comes back. */
async function play(api, token, code) {
  const connection = await Connection.open(await new Allocations(api, token).join(code))
  await connection.connect()
  const say = () => connection.send(new TextEncoder().encode("hello"))
  const again = setInterval(say, 1000)
  say()
  for await (const e of connection) {
    if (e.type !== "message") continue
    clearInterval(again)
    connection.close()
    return new TextDecoder().decode(e.content)
  }
}

Object.assign(globalThis, { play })
