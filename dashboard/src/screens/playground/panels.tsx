/**
 * All panels of the playground. To add a task: a component in this folder that takes `PanelProps`, and an entry here.
 */

import { type ComponentType, lazy, type LazyExoticComponent } from "react";
import {
  type Icon,
  IconBrain,
  IconFileDescription,
  IconFileText,
  IconLanguage,
  IconMessageCircle,
  IconMicrophone,
  IconPhoto,
  IconPhotoScan,
  IconTags,
  IconVector,
  IconVolume,
} from "@/components/icons";
import type { CatalogModel } from "@/screens/models/catalog-filters";

export interface PanelProps {
  accountId: string;
  /** Models of the panel's task that can be called; never empty if the panel has a task. */
  models: CatalogModel[];
  panel: Panel;
}

export interface Panel {
  /** Value of the query parameter `panel`. */
  key: string;
  title: string;
  icon: Icon;
  /** The catalog's task whose models the panel offers; null if the panel needs no model. */
  task: string | null;
  component: LazyExoticComponent<ComponentType<PanelProps>>;
}

const RunPanel = lazy(() => import("./RunPanel"));

export const PANELS: Panel[] = [
  {
    key: "chat",
    title: "Chat",
    icon: IconMessageCircle,
    task: "Text Generation",
    component: lazy(() => import("./ChatPanel")),
  },
  {
    key: "completion",
    title: "Completion",
    icon: IconBrain,
    task: "Text Generation",
    component: lazy(() => import("./CompletionPanel")),
  },
  {
    key: "embeddings",
    title: "Embeddings",
    icon: IconVector,
    task: "Text Embeddings",
    component: lazy(() => import("./EmbeddingsPanel")),
  },
  { key: "speech", title: "Speech to text", icon: IconMicrophone, task: "Automatic Speech Recognition", component: RunPanel },
  { key: "voice", title: "Text to speech", icon: IconVolume, task: "Text-to-Speech", component: RunPanel },
  { key: "image", title: "Text to image", icon: IconPhoto, task: "Text-to-Image", component: RunPanel },
  { key: "describe", title: "Image to text", icon: IconFileDescription, task: "Image-to-Text", component: RunPanel },
  { key: "classify-image", title: "Image classes", icon: IconPhoto, task: "Image Classification", component: RunPanel },
  { key: "detect", title: "Objects", icon: IconPhotoScan, task: "Object Detection", component: RunPanel },
  { key: "classify", title: "Classify and rank", icon: IconTags, task: "Text Classification", component: RunPanel },
  { key: "translate", title: "Translate", icon: IconLanguage, task: "Translation", component: RunPanel },
  { key: "summarize", title: "Summarize", icon: IconFileText, task: "Summarization", component: RunPanel },
  {
    key: "documents",
    title: "Documents",
    icon: IconFileText,
    task: null,
    component: lazy(() => import("./DocumentsPanel")),
  },
];

/** Return the panel that runs models of a task, or null. */
export function panelOf(task: string): Panel | null {
  return PANELS.find((panel) => panel.task === task) ?? null;
}
