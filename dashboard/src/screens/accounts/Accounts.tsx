/** Accounts: list, create, and one account with its members, limits and rules. */

import { Route, Routes } from "react-router";
import { AccountList } from "./AccountList";
import { AccountPage } from "./AccountPage";

export default function Accounts() {
  return (
    <Routes>
      <Route index element={<AccountList />} />
      <Route path=":accountId" element={<AccountPage />} />
    </Routes>
  );
}
