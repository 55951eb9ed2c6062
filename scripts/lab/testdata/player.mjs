// A player in Node for worldclients_test.go: URL, code and token are its last arguments. It sends a number
// each 250 ms, and prints what comes back.

import { Allocations, Connection } from "../../../client/js/src/index.ts"

const [url, code, token] = process.argv.slice(-3)
try {
  const connection = await Connection.open(await new Allocations(url, token).join(code), { url: url.replace("http", "ws") })
  await connection.connect()
  console.log("connected")
  let said = 0
  setInterval(() => connection.send(new TextEncoder().encode(String(++said))), 250)
  for await (const e of connection) {
    if (e.type === "message") console.log("back", new TextDecoder().decode(e.content))
    else console.log(e.type === "leave" ? "ended:" : e.type, e.reason ?? "")
  }
} catch (e) {
  console.log("ended:", e.message)
  process.exit(1)
}
