// Joins the match of host/main.go by its code and chats with it. The page sends {name} every two
// seconds and {name, text}; the host sends {players} and {from, text}, all of them as JSON.

import { Allocations, Connection } from "@ferryrelay/client"

const element = <T extends HTMLElement>(id: string) => document.getElementById(id) as T
const value = (id: string) => element<HTMLInputElement>(id).value.trim()
const showStatus = (text: string) => { element("status").textContent = text }

function item(text: string): HTMLLIElement {
  const li = document.createElement("li")
  li.textContent = text
  return li
}

for (const [id, text] of new URLSearchParams(location.hash.slice(1))) {
  if (id === "api" || id === "code" || id === "name") element<HTMLInputElement>(id).value = text
}

let connection: Connection | undefined

element("join").addEventListener("submit", async e => {
  e.preventDefault()
  connection?.close()
  showStatus("joining")
  try {
    const allocation = await new Allocations(value("api"), value("token")).join(value("code"))
    connection = await Connection.open(allocation)
    await connection.connect()
    showStatus("connected")
    element("chat").hidden = false
    await chat(connection)
  } catch (e) {
    showStatus(e instanceof Error ? e.message : String(e))
  }
  element("chat").hidden = true
  element("players").replaceChildren()
})

element("chat").addEventListener("submit", e => {
  e.preventDefault()
  if (connection?.peers.size) say(connection, { name: value("name"), text: value("text") })
  element<HTMLInputElement>("text").value = ""
})

element<HTMLButtonElement>("go").disabled = false // Before, the browser itself would submit the form.

// The relay would keep the allocation of a page that is gone for 10 s.
addEventListener("pagehide", () => connection?.close())

/** Shows what the host sends, until it leaves or the connection ends. */
async function chat(connection: Connection): Promise<void> {
  const present = () => { if (connection.peers.size) say(connection, { name: value("name") }) }
  const timer = setInterval(present, 2000)
  present()
  try {
    for await (const event of connection) {
      if (event.type === "message") show(JSON.parse(new TextDecoder().decode(event.content)))
      else if (event.type === "reconnecting") showStatus("reconnecting: " + event.reason)
      else if (event.type === "reconnected") showStatus("connected")
      else if (event.type === "leave") return showStatus("the host has left")
    }
    showStatus("not connected")
  } finally {
    clearInterval(timer)
    connection.close()
  }
}

function say(connection: Connection, message: { name: string; text?: string }): void {
  connection.send(new TextEncoder().encode(JSON.stringify(message)))
}

function show(message: { players?: string[]; from?: string; text?: string }): void {
  if (message.players) element("players").replaceChildren(...message.players.map(item))
  if (message.text) element("lines").append(item(`${message.from}: ${message.text}`))
}
