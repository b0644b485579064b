/** API tokens of one account: list, create, change, roll, revoke. */

import { Route, Routes } from "react-router";
import { useAccountId } from "@/app/session";
import { NoAccount } from "@/components/NoAccount";
import { EditToken } from "./EditToken";
import { NewToken } from "./NewToken";
import { TokenList } from "./TokenList";

export default function ApiTokens() {
  const accountId = useAccountId();
  if (accountId === null) return <NoAccount title="API tokens" />;
  return (
    <Routes>
      <Route index element={<TokenList accountId={accountId} key={accountId} />} />
      <Route path="new" element={<NewToken accountId={accountId} key={accountId} />} />
      <Route path=":tokenId" element={<EditToken accountId={accountId} />} />
    </Routes>
  );
}
