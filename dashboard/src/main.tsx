import "@mantine/core/styles.css";
import "@mantine/notifications/styles.css";
import "@mantine/spotlight/styles.css";
import "./app/global.css";

import { createRoot } from "react-dom/client";
import { App } from "./app/App";
import { startLoading } from "./app/start-loading";

// Libraries that add style elements read the nonce from this name.
const nonce = document.querySelector<HTMLElement>('meta[property="csp-nonce"]')?.nonce ?? "";
Object.assign(globalThis, { __webpack_nonce__: nonce });

const root = document.getElementById("root");
if (root) void startLoading(window.location.pathname).then(() => createRoot(root).render(<App nonce={nonce} />));
