"""Names and codes of languages: English name, ISO 639-1 code, and FLORES-200 code, whose first part is ISO 639-3."""

from __future__ import annotations

from collections.abc import Sequence

_TABLE = """
Afrikaans af afr_Latn; Albanian sq als_Latn; Amharic am amh_Ethi; Arabic ar arb_Arab; Armenian hy hye_Armn;
Assamese as asm_Beng; Asturian ast ast_Latn; Azerbaijani az azj_Latn; Bashkir ba bak_Cyrl; Belarusian be bel_Cyrl;
Bengali bn ben_Beng; Bosnian bs bos_Latn; Breton br bre_Latn; Bulgarian bg bul_Cyrl; Burmese my mya_Mymr;
Catalan ca cat_Latn; Cebuano ceb ceb_Latn; Chinese zh zho_Hans; Croatian hr hrv_Latn; Czech cs ces_Latn;
Danish da dan_Latn; Dutch nl nld_Latn; English en eng_Latn; Esperanto eo epo_Latn; Estonian et est_Latn;
Finnish fi fin_Latn; French fr fra_Latn; Frisian fy fry_Latn; Fulah ff fuv_Latn; Galician gl glg_Latn;
Ganda lg lug_Latn; Georgian ka kat_Geor; German de deu_Latn; Greek el ell_Grek; Gujarati gu guj_Gujr;
Haitian ht hat_Latn; Hausa ha hau_Latn; Hebrew he heb_Hebr; Hindi hi hin_Deva; Hungarian hu hun_Latn;
Icelandic is isl_Latn; Igbo ig ibo_Latn; Iloko ilo ilo_Latn; Indonesian id ind_Latn; Irish ga gle_Latn;
Italian it ita_Latn; Japanese ja jpn_Jpan; Javanese jv jav_Latn; Kannada kn kan_Knda; Kazakh kk kaz_Cyrl;
Khmer km khm_Khmr; Korean ko kor_Hang; Lao lo lao_Laoo; Latvian lv lvs_Latn; Lingala ln lin_Latn;
Lithuanian lt lit_Latn; Luxembourgish lb ltz_Latn; Macedonian mk mkd_Cyrl; Malagasy mg plt_Latn; Malay ms zsm_Latn;
Malayalam ml mal_Mlym; Maltese mt mlt_Latn; Marathi mr mar_Deva; Mongolian mn khk_Cyrl; Nepali ne npi_Deva;
Norwegian no nob_Latn; Occitan oc oci_Latn; Oriya or ory_Orya; Pashto ps pbt_Arab; Persian fa pes_Arab;
Polish pl pol_Latn; Portuguese pt por_Latn; Punjabi pa pan_Guru; Romanian ro ron_Latn; Russian ru rus_Cyrl;
Gaelic gd gla_Latn; Serbian sr srp_Cyrl; Sindhi sd snd_Arab; Sinhala si sin_Sinh; Slovak sk slk_Latn;
Slovenian sl slv_Latn; Somali so som_Latn; Spanish es spa_Latn; Sundanese su sun_Latn; Swahili sw swh_Latn;
Swati ss ssw_Latn; Swedish sv swe_Latn; Tagalog tl tgl_Latn; Tamil ta tam_Taml; Telugu te tel_Telu; Thai th tha_Thai;
Tswana tn tsn_Latn; Turkish tr tur_Latn; Ukrainian uk ukr_Cyrl; Urdu ur urd_Arab; Uzbek uz uzn_Latn;
Vietnamese vi vie_Latn; Welsh cy cym_Latn; Wolof wo wol_Latn; Xhosa xh xho_Latn; Yiddish yi ydd_Hebr;
Yoruba yo yor_Latn; Zulu zu zul_Latn
"""

_ROWS = [row.lower().split() for row in _TABLE.split(";")]
_BY_ANY = {
    key: (iso, flores.partition("_")[0], flores)
    for name, iso, flores in _ROWS
    for key in (name, iso, flores[:3], flores)
}


def find_code(language: str, codes: Sequence[str]) -> str | None:
    """Return the code among `codes` of a language, given by a code or an English name in any case; None if there is
    none. A region is ignored: `pt-BR` finds `pt`."""
    own = {code.lower(): code for code in codes}
    wanted = language.strip().lower()
    for key in (wanted, wanted.replace("-", "_"), wanted.replace("_", "-").partition("-")[0]):
        for candidate in (key, *_BY_ANY.get(key, ())):
            if candidate in own:
                return own[candidate]
    return None
