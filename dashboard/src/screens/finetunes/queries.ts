/** LoRA adapters of an account, and public ones. */

import { useQuery } from "@tanstack/react-query";
import { client, result, send } from "@/api/client";

export interface Finetune {
  id: string;
  model: string;
  name: string;
  description: string;
  public: boolean;
  created_at: string;
  modified_at: string;
}

export const FILES = ["adapter_config.json", "adapter_model.safetensors"] as const;

export function useOwnFinetunes(accountId: string) {
  return useQuery({
    queryKey: ["finetunes", accountId],
    queryFn: () =>
      result<Finetune[]>(
        client.GET("/client/v4/accounts/{account_id}/ai/finetunes", { params: { path: { account_id: accountId } } }),
      ),
  });
}

export function usePublicFinetunes(accountId: string) {
  return useQuery({
    queryKey: ["public finetunes", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId }, query: { limit: 1000 } };
      return result<Finetune[]>(client.GET("/client/v4/accounts/{account_id}/ai/finetunes/public", { params }));
    },
  });
}

export interface NewFinetune {
  model: string;
  name: string;
  description: string;
  public: boolean;
}

export function createFinetune(accountId: string, body: NewFinetune): Promise<Finetune> {
  const params = { path: { account_id: accountId } };
  return result<Finetune>(client.POST("/client/v4/accounts/{account_id}/ai/finetunes", { params, body }));
}

/** Upload one of the two files of a finetune. Throws ApiError. */
export async function uploadFile(accountId: string, finetuneId: string, name: string, file: File): Promise<void> {
  const form = new FormData();
  form.append("file_name", name);
  form.append("file", file);
  await send(`/client/v4/accounts/${accountId}/ai/finetunes/${finetuneId}/finetune-assets`, { method: "POST", body: form });
}

export function removeFinetune(accountId: string, finetuneId: string): Promise<unknown> {
  const params = { path: { account_id: accountId, finetune_id: finetuneId } };
  return result(client.DELETE("/client/v4/accounts/{account_id}/ai/finetunes/{finetune_id}", { params }));
}
