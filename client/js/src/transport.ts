import { RelayError } from "./errors.ts"
import type { Bytes } from "./messages.ts"

/** A path to a relay that carries each message whole. It reports to its TransportEvents, never before dial has returned. */
export interface Transport {
  /** How many bytes wait to be sent. */
  readonly buffered: number
  /** Sends a packet, or drops it if the transport is not open. */
  send(packet: Bytes): void
  /** Ends it. Nothing is reported any more. */
  close(): void
}

export interface TransportEvents {
  opened(): void
  received(packet: Bytes): void
  /** It has ended, or could not be opened, and why in words. */
  closed(why: string): void
}

/** Opens a transport to a URL. */
export type Dial = (url: string, events: TransportEvents) => Transport

/** What the client uses of a WebSocket. Those of browsers, Node, Deno and the package ws have it. */
export interface WebSocketLike {
  binaryType: string
  readonly readyState: number
  readonly bufferedAmount: number
  onopen: ((event: any) => void) | null
  onmessage: ((event: any) => void) | null
  onclose: ((event: any) => void) | null
  onerror: ((event: any) => void) | null
  send(data: Bytes): void
  close(code?: number): void
}

export type WebSocketConstructor = new (url: string) => WebSocketLike

/** The readyState of an open WebSocket. */
const OPEN = 1

/** Returns what opens WebSockets of a constructor, by default the runtime's own. */
export function webSocketDial(constructor: WebSocketConstructor | undefined): Dial {
  const Constructor = constructor ?? (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket
  if (Constructor === undefined) {
    throw new RelayError("no-websocket", "this runtime has no WebSocket, as Node before 22: pass a constructor, such as that of the package ws, in the option WebSocket")
  }
  return (url, events) => new WebSocketTransport(new Constructor(url), url, events)
}

class WebSocketTransport implements Transport {
  readonly #socket: WebSocketLike

  constructor(socket: WebSocketLike, url: string, events: TransportEvents) {
    this.#socket = socket
    let opened = false, cause = ""
    socket.binaryType = "arraybuffer"
    socket.onopen = () => {
      opened = true
      events.opened()
    }
    socket.onmessage = (e: { data: unknown }) => { if (e.data instanceof ArrayBuffer) events.received(new Uint8Array(e.data)) }
    socket.onerror = (e: { message?: unknown }) => { if (typeof e.message === "string" && e.message !== "") cause = ": " + e.message }
    socket.onclose = (e: { code: number }) => events.closed(opened ? "the WebSocket was closed with " + e.code : `no WebSocket to ${url} opens${cause}`)
  }

  get buffered(): number { return this.#socket.bufferedAmount }

  send(packet: Bytes): void { if (this.#socket.readyState === OPEN) this.#socket.send(packet) }

  close(): void {
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null
    this.#socket.onerror = () => {} // The package ws throws what nothing handles.
    this.#socket.close(1000)
  }
}
