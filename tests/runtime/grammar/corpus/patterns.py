"""Regular expressions like those that people constrain texts with, each with texts that match and texts that do not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PatternCase:
    """A pattern, and what re.fullmatch says of some texts."""

    name: str
    pattern: str
    members: tuple[str, ...]
    non_members: tuple[str, ...]


def _case(name: str, pattern: str, members: list[str], non_members: list[str]) -> PatternCase:
    return PatternCase(name, pattern, tuple(members), tuple(non_members))


DATES_AND_TIMES = (
    _case("iso_date", r"[0-9]{4}-[0-9]{2}-[0-9]{2}", ["2026-11-30", "0000-00-00"], ["2026-1-30", "2026-11-30 "]),
    _case(
        "iso_date_exact",
        r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])",
        ["1999-12-31"],
        ["1999-13-01", "1999-00-10"],
    ),
    _case("iso_time", r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", ["23:59", "00:00:00"], ["24:00", "12:60", "12:00:"]),
    _case(
        "iso_datetime",
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})",
        ["2026-11-30T07:52:30Z", "2026-11-30T07:52:30.25+01:00"],
        ["2026-11-30T07:52:30", "2026-11-30 07:52:30Z"],
    ),
    _case("us_date", r"(0?[1-9]|1[0-2])/(0?[1-9]|[12][0-9]|3[01])/[0-9]{4}", ["7/4/1776", "12/31/1999"], ["13/1/2000"]),
    _case("german_date", r"[0-3]?\d\.[01]?\d\.(?:\d\d)?\d\d", ["3.10.90", "24.12.2024"], ["3.10.190", "3-10-90"]),
    _case(
        "month_name",
        r"(January|February|March|April|May|June|July|August|September|October|November|December)",
        ["May", "September"],
        ["Sept", "may", "MayMay"],
    ),
    _case("weekday_short", r"Mon|Tue|Wed|Thu|Fri|Sat|Sun", ["Mon", "Sun"], ["Monday", ""]),
    _case("clock_12h", r"(1[0-2]|[1-9]):[0-5]\d ?[ap]\.?m\.?", ["9:05 a.m.", "12:30pm"], ["13:00 pm", "9:5 am"]),
    _case("iso_duration", r"P(?:\d+D)?(?:T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?", ["P1DT2H", "PT5M", "P"], ["1D", "P1H"]),
    _case("iso_week", r"\d{4}-W(0[1-9]|[1-4]\d|5[0-3])", ["2024-W01", "2020-W53"], ["2024-W54", "2024-W1"]),
    _case("year_range", r"(19|20)\d\d(?:-(19|20)\d\d)?", ["1999", "1999-2004"], ["1899", "1999-"]),
    _case("cron_field", r"\*|[0-5]?\d(?:-[0-5]?\d)?(?:/\d+)?", ["*", "5", "0-30/5"], ["**", "60", "-5"]),
)

NUMBERS = (
    _case("digit", r"\d", ["0", "9", "\u0664"], ["", "10", "a"]),
    _case("ascii_digits", r"(?a:\d+)", ["42", "007"], ["\u0664", "4 2"]),
    _case("integer", r"-?(0|[1-9]\d*)", ["0", "-7", "1024"], ["01", "--1", "-"]),
    _case("small_integer", r"[1-9][0-9]{0,2}", ["1", "999"], ["0", "1000"]),
    _case("decimal", r"[+-]?\d+\.\d+", ["3.14", "-0.5"], ["3.", ".5", "3"]),
    _case("float", r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", ["1", "1.", ".5", "6.02e23"], ["e5", ".", "1e"]),
    _case("json_number", r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", ["0", "-1.5e-3"], ["00", "+1", "1."]),
    _case("thousands", r"\d{1,3}(?:,\d{3})*", ["7", "1,000", "12,345,678"], ["1000", "1,00", ",000"]),
    _case("percentage", r"(?:100|[1-9]?\d)(?:\.\d{1,2})?%", ["0%", "99.95%", "100%"], ["101%", "7"]),
    _case("hex_literal", r"0[xX][0-9a-fA-F]+", ["0xdeadBEEF", "0X0"], ["0x", "x12", "0xg"]),
    _case("binary_literal", r"0b[01](?:_?[01])*", ["0b1010", "0b1_0"], ["0b_1", "0b1_", "0b2"]),
    _case("roman", r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})", ["MCMXCIX", "IV", ""], ["IIII", "VX"]),
    _case("ordinal", r"\d*(?:1st|2nd|3rd|[04-9]th)", ["1st", "22nd", "104th"], ["1th", "2st"]),
    _case("fraction", r"(?:[1-9]\d* )?[1-9]\d*/[1-9]\d*", ["1/2", "3 1/4"], ["0/1", "1/", "1 2"]),
    _case("byte_value", r"25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d", ["0", "99", "255"], ["256", "00", "1000"]),
    _case("even", r"[0-9]*[02468]", ["0", "124"], ["7", ""]),
    _case("scientific", r"\d(?:\.\d+)? ?[x×] ?10\^-?\d+", ["3 x 10^8", "6.02×10^-23"], ["30 x 10^8", "3x10"]),
    _case("range", r"\d+(?:-|–|\.\.)\d+", ["1-10", "3–5", "0..9"], ["1-", "1.10"]),
    _case("score", r"(?:[0-9]|10)/10", ["7/10", "10/10"], ["11/10", "7/1"]),
    _case("currency_eur", r"€ ?\d{1,6}(?:,\d\d)?", ["€5", "€ 12,50"], ["5€", "€1,5"]),
    _case("currency_usd", r"\$\d+(?:\.\d{2})?", ["$5", "$12.50"], ["$5.5", "5", "$"]),
    _case("price_with_code", r"(?:USD|EUR|GBP|JPY) \d{1,9}\.\d{2}", ["EUR 10.00"], ["CHF 10.00", "EUR 10"]),
    _case(
        "version",
        r"v?\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?",
        ["1.0.0", "v2.1.3-rc.1+b5"],
        ["1.0", "v"],
    ),
    _case("measure", r"\d+(?:\.\d+)? ?(?:mm|cm|m|km|in|ft)", ["5cm", "1.75 m"], ["5", "5 yd"]),
    _case("temperature", r"-?\d{1,3}(?:\.\d)? ?°[CF]", ["21.5 °C", "-40°F"], ["21 C", "1000°C"]),
)

IDENTIFIERS = (
    _case(
        "uuid", r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]
    ),
    _case(
        "uuid_any_case",
        r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        ["123E4567-e89b-12d3-A456-426614174000"],
        ["g"],
    ),
    _case("python_name", r"[A-Za-z_][A-Za-z0-9_]*", ["x", "_private", "camelCase2"], ["2x", "a-b", ""]),
    _case("unicode_name", r"[^\W\d]\w*", ["größe", "имя", "_x"], ["1a", "a b"]),
    _case("slug", r"[a-z0-9]+(?:-[a-z0-9]+)*", ["a", "hello-world-2"], ["-a", "a--b", "A"]),
    _case("constant", r"[A-Z]+(?:_[A-Z0-9]+)*", ["MAX_LEN_2", "X"], ["Max", "A_"]),
    _case("dotted_path", r"[a-z_]+(\.[a-z_]+){0,5}", ["os.path.join", "a"], ["a.", ".a", "a.b.c.d.e.f.g"]),
    _case("hex_colour", r"#(?:[0-9a-fA-F]{3}){1,2}", ["#fff", "#A0b1C2"], ["#ffff", "fff", "#ggg"]),
    _case("git_sha", r"[0-9a-f]{7,40}", ["117740a", "a" * 40], ["117740", "a" * 41, "XYZ1234"]),
    _case("ticket", r"[A-Z]{2,5}-[1-9]\d{0,5}", ["AB-1", "RAMET-42"], ["A-1", "AB-01"]),
    _case("isbn13", r"97[89](?:-?\d){10}", ["978-3-16-148410-0", "9783161484100"], ["9773161484100"]),
    _case(
        "iban",
        r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?",
        ["DE89 3704 0044 0532 0130 00"],
        ["DE8 3704"],
    ),
    _case("license_plate", r"[A-ZÄÖÜ]{1,3}-[A-Z]{1,2} [1-9]\d{0,3}", ["M-AB 123", "WÜ-X 1"], ["m-ab 1", "M-ABC 1"]),
    _case("mac", r"(?:[0-9A-F]{2}:){5}[0-9A-F]{2}", ["00:1A:2B:3C:4D:5E"], ["00:1A:2B:3C:4D", "00-1A-2B-3C-4D-5E"]),
    _case(
        "base64", r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", ["", "TWFu", "TQ=="], ["T", "TQ="]
    ),
    _case("jwt", r"[\w-]+\.[\w-]+\.[\w-]*", ["aaa.bbb.ccc", "a-_.b."], ["aaa.bbb", "a b.c.d"]),
    _case(
        "semantic_tag",
        r"(?:feat|fix|docs|test)(?:\([a-z]+\))?!?: [^\n]{1,50}",
        ["fix(radix): split once"],
        ["fix:x", "chore: x"],
    ),
    _case("social_handle", r"@\w{1,15}", ["@ada", "@Ада"], ["ada", "@", "@a b"]),
    _case("hashtag", r"#[^\s#]+", ["#tag", "#日本"], ["#", "#a#b", "# a"]),
    _case("env_line", r"[A-Z_]+=[^\n\"]*|[A-Z_]+=\"[^\n\"]*\"", ["A=1", 'HOME="/x y"', "B="], ['A="x', "a=1"]),
    _case("postcode_uk", r"[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}", ["SW1A 1AA", "M11AE"], ["SW1A", "sw1a 1aa"]),
    _case("gene", r"(?:rs\d{1,9}|[A-Z][A-Z0-9]{1,5}(?:-\d)?)", ["rs7412", "BRCA1", "HLA-1"], ["rs", "b1"]),
)

INTERNET = (
    _case(
        "email", r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}", ["harry.potter@hogwarts.ac.uk", "a@b.co"], ["a@b", "@b.co"]
    ),
    _case("email_simple", r"[a-z.]+@[a-z.]+\.[a-z]{2,4}", ["a.b@c.de"], ["a1@b.de", "a@b.c"]),
    _case(
        "ipv4",
        r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
        ["127.0.0.1"],
        ["1.2.3", "256.1.1.1"],
    ),
    _case("ipv4_ascii", r"(?a)(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?", ["10.0.0.0/8", "1.2.3.4"], ["1.2.3", "1.2.3.4/"]),
    _case("ipv6_full", r"(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}", ["1:2:3:4:5:6:7:8"], ["1:2:3:4:5:6:7", "::1"]),
    _case("url", r"https?://[^\s/$.?#][^\s]*", ["http://x.org", "https://a.b/c?d=e#f"], ["ftp://x", "http://"]),
    _case(
        "url_parts",
        r"https?://([\w-]+\.)+[a-z]{2,}(:\d{2,5})?(/[^\s?#]*)?(\?[^\s#]*)?",
        ["http://a.de:80/p?q"],
        ["http://a"],
    ),
    _case(
        "domain",
        r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,}",
        ["a.de", "x-y.example.org"],
        ["-a.de", "a..de"],
    ),
    _case(
        "http_status",
        r"HTTP/1\.[01] [1-5]\d\d [A-Z][A-Za-z ]*",
        ["HTTP/1.1 200 OK"],
        ["HTTP/2 200 OK", "HTTP/1.1 600 X"],
    ),
    _case("http_method", r"GET|HEAD|POST|PUT|DELETE|PATCH", ["GET", "PATCH"], ["get", "GETPOST"]),
    _case(
        "header", r"[A-Z][A-Za-z-]+: [^\r\n]+\r\n", ["Content-Type: text/html\r\n"], ["Content-Type: x\n", "x: y\r\n"]
    ),
    _case(
        "mime",
        r"(?:text|image|audio|video|application)/[a-z0-9.+-]+",
        ["text/html", "image/svg+xml"],
        ["font/ttf", "text/"],
    ),
    _case("query_string", r"\w+=[^&=\s]*(?:&\w+=[^&=\s]*)*", ["a=1", "a=&b=2"], ["a", "&a=1", "a=1&"]),
    _case("file_path", r"(?:/[^/\0\n]+)+/?", ["/etc/hosts", "/a/"], ["", "/", "a/b", "//"]),
    _case(
        "windows_path",
        r"[A-Z]:\\(?:[^\\/:*?\"<>|\r\n]+\\)*[^\\/:*?\"<>|\r\n]*",
        ["C:\\", "D:\\a b\\c.txt"],
        ["C:", "c:\\"],
    ),
    _case("file_name", r"[\w,\s-]+\.(?:pdf|docx?|png|jpe?g)", ["a b.pdf", "x.jpeg", "x.doc"], ["x.gif", ".pdf"]),
)

PHONES = (
    _case("phone_us", r"\(?\d{3}\)?[ .-]?\d{3}[ .-]?\d{4}", ["(555) 123-4567", "5551234567"], ["555-12345", "phone"]),
    _case("phone_e164", r"\+[1-9]\d{1,14}", ["+14155552671"], ["+0123", "4155552671"]),
    _case(
        "phone_de",
        r"(?:\+49|0)(?: ?\(?\d{2,5}\)?) ?[/-]? ?\d{3,}(?:[ -]?\d+)*",
        ["+49 30 123456", "030 123 456"],
        ["49"],
    ),
    _case("extension", r"x\d{1,5}|ext\. ?\d{1,5}", ["x12", "ext. 345"], ["12", "ext 1"]),
    _case("emergency", r"110|112|911|999", ["112", "999"], ["11", "1112"]),
)

PEOPLE_AND_PLACES = (
    _case("full_name", r"[A-Z][a-z]+(?: [A-Z]\.)? [A-Z][a-z]+", ["Ada Lovelace", "John Q. Public"], ["ada", "Ada"]),
    _case(
        "unicode_full_name",
        r"[A-ZÀ-ÖØ-Þ][a-zà-öø-ÿ]+(?:[- ][A-ZÀ-ÖØ-Þ][a-zà-öø-ÿ]+)+",
        ["Élodie Durand-Noël"],
        ["élodie"],
    ),
    _case("title_name", r"(?:Mr|Mrs|Ms|Dr|Prof)\. \w+", ["Dr. Strange", "Prof. Ångström"], ["Dr Strange", "Sir. X"]),
    _case("initials", r"(?:[A-Z]\.){1,4}", ["J.R.R.", "A."], ["JRR", "A.B.C.D.E."]),
    _case(
        "street",
        r"\d{1,5}[A-Za-z]? (?:[A-Z][a-z]+ ){1,3}(?:St|Ave|Rd|Lane)\.?",
        ["221B Baker St.", "1 Penny Lane"],
        ["Baker St"],
    ),
    _case(
        "us_address",
        r"[^,\n]+, [A-Z][a-z]+(?: [A-Z][a-z]+)*, [A-Z]{2} \d{5}(?:-\d{4})?",
        ["1 A St, New York, NY 10001"],
        ["x, Y, NY 1"],
    ),
    _case("lat_long", r"-?\d{1,2}\.\d{1,6}, ?-?\d{1,3}\.\d{1,6}", ["48.858,2.2945", "-33.86, 151.2"], ["48, 2"]),
    _case("country_code", r"[A-Z]{2}", ["DE", "FR"], ["D", "de", "DEU"]),
    _case(
        "language_tag", r"[a-z]{2,3}(?:-[A-Z][a-z]{3})?(?:-[A-Z]{2})?", ["en", "zh-Hant-TW", "de-AT"], ["EN", "en-us"]
    ),
    _case("height", r"\d'(?: ?(?:1[01]|\d)\")?", ["6'", "5'11\"", "5' 9\""], ["5'12\"", "6"]),
)

CHOICES = (
    _case("yes_no", r"yes|no", ["yes", "no"], ["y", "yesno", ""]),
    _case("yes_please", r"yes|yes please|no", ["yes", "yes please"], ["yes ", "please"]),
    _case("prefix_first", r"a|ab|abc", ["a", "ab", "abc"], ["", "b", "abcd"]),
    _case("true_false_any_case", r"(?i:true|false)", ["TRUE", "False", "true"], ["truth", "0"]),
    _case("sentiment", r"(?:very )?(?:positive|negative)|neutral", ["very negative", "neutral"], ["very neutral"]),
    _case("multiple_choice", r"\(?[A-E]\)?", ["A", "(C)", "D)"], ["F", "((A))", ""]),
    _case("answer_letter", r"Answer: (?:A|B|C|D)", ["Answer: A"], ["Answer:A", "Answer: E", "answer: A"]),
    _case(
        "label_with_confidence", r"(?:spam|ham) \((?:0\.\d{2}|1\.00)\)", ["spam (0.87)", "ham (1.00)"], ["spam (1.01)"]
    ),
    _case("stars", r"★{1,5}☆{0,4}", ["★", "★★★☆☆"], ["", "☆", "★★★★★★"]),
    _case("emoji_mood", r"[😀😐😢]", ["😀", "😢"], ["😡", "", "😀😀"]),
    _case("optional_suffix", r"(?:un)?(?:happy|likely)(?:er|est)?", ["unhappy", "likelyest"], ["un", "happyer "]),
    _case("empty_or_x", r"|x", ["", "x"], ["xx", " "]),
    _case("none_or_list", r"None|\[(?:'[a-z]+'(?:, '[a-z]+')*)?\]", ["None", "[]", "['a', 'b']"], ["[a]", "['a',]"]),
    _case("tool_name", r"(?:search|calculator|weather)(?:_v[12])?", ["search", "weather_v2"], ["search_v3", "_v1"]),
    _case("traffic_light", r"r(?:ed)?|y(?:ellow)?|g(?:reen)?", ["r", "green"], ["re", "ry"]),
)

TEXTS = (
    _case("one_line", r"[^\n]{1,200}", ["x", "Ein Satz über Öl. 😀"], ["", "a\nb", "x" * 201]),
    _case("any_line", r".*", ["", "anything at all", "é"], ["\n", "a\n"]),
    _case("anything", r"(.|\n)*", ["", "a\nb\n", "日本\n"], []),
    _case("anything_dotall", r"(?s).{2,}", ["\n\n", "ab"], ["a", ""]),
    _case("word", r"\w+", ["word", "слово", "言葉", "x²"], ["two words", "", "a-b"]),
    _case("ascii_word", r"(?a)\w+", ["word_1"], ["слово", "é"]),
    _case("words", r"[A-Za-z]+(?: [A-Za-z]+){0,9}", ["one", "one two three"], ["one  two", " one"]),
    _case("sentence", r"[A-Z][^.!?\n]*[.!?]", ["Hello world.", "Why?"], ["hello.", "Hello. World."]),
    _case("paragraph", r"(?:[A-Z][^.!?\n]{0,80}[.!?] ?){1,3}", ["One. Two! Three?"], ["one.", ""]),
    _case("quoted", r"\"[^\"\n]*\"", ['""', '"a b"'], ['"', '"a"b"']),
    _case("quoted_with_escapes", r"\"(?:[^\"\\\n]|\\.)*\"", ['"a\\"b"', '"\\\\"'], ['"\\"', '"a"b"']),
    _case("single_or_double", r"'[^']*'|\"[^\"]*\"", ["'a'", '"it\'s"'], ["'a\"", "a"]),
    _case("no_vowels", r"[^aeiou]*", ["", "rhythm", "ÄÖ"], ["a", "why not"]),
    _case("ends_in_ing", r"[a-z]*ing", ["ing", "singing"], ["in", "ings"]),
    _case("lazy_until_end", r".*?end", ["end", "endend", "the end"], ["en", "ends"]),
    _case("lazy_tag", r"<b>.+?</b>", ["<b>x</b>", "<b>a</b></b>"], ["<b></b>", "<b>x"]),
    _case("spaces", r"\s+", [" ", "\t\n\u00a0\u3000"], ["", "a"]),
    _case("non_spaces", r"\S+", ["a", "日本😀"], [" ", "a b"]),
    _case("not_digits", r"\D{2,3}", ["ab", "é-!"], ["a", "a1"]),
    _case("punctuation", r"[.,;:!?…—-]+", ["...", "?!", "—-"], ["a", ""]),
    _case(
        "haiku", r"(?:[A-Za-z ]{5,30}\n){2}[A-Za-z ]{5,30}", ["an old pond\na frog jumps in\nplop it goes"], ["a\nb\nc"]
    ),
    _case("trailing_newline", r"[a-z]+\n", ["abc\n"], ["abc", "abc\n\n"]),
    _case("ellipsis_mix", r"(?:\.{3}|…) ?\w*", ["... and", "…"], ["..", "....."]),
    _case("two_columns", r"[^\t\n]*\t[^\t\n]*", ["a\tb", "\t"], ["a", "a\tb\tc"]),
    _case("censored", r"[a-z]\*{2,}[a-z]", ["d**n", "s***t"], ["d*n", "damn"]),
)

UNICODE = (
    _case("cyrillic", r"[А-Яа-яЁё]+", ["Привет", "Ёж"], ["Hello", "Привет!"]),
    _case("greek", r"[\u0370-\u03ff]+", ["λόγος", "αβγ"], ["abc", ""]),
    _case("cjk", r"[\u4e00-\u9fff]{2,4}", ["日本", "東京大学"], ["日", "カナ"]),
    _case("kana", r"[ぁ-んァ-ヶー]+", ["ひらがな", "カー"], ["漢字"]),
    _case("hangul", r"[가-힣]+", ["한국어"], ["한 국"]),
    _case("arabic", r"[\u0600-\u06ff ]+", ["مرحبا بك"], ["hello"]),
    _case("hebrew_or_latin", r"(?:[א-ת]+|[a-z]+)", ["שלום", "shalom"], ["שלוםa"]),
    _case("emoji", r"[\U0001F300-\U0001FAFF]{1,3}", ["🌍", "🎉🎈🎁"], ["☺", "🌍🌍🌍🌍"]),
    _case("astral_literal", r"𝄞+", ["𝄞", "𝄞𝄞"], ["𝄢", ""]),
    _case("accents", r"[a-zà-öø-ÿ]+", ["café", "über"], ["CAFÉ", "cafe\u0301"]),
    _case("case_insensitive_accents", r"(?i)café", ["CAFÉ", "Café"], ["CAFE", "cafe"]),
    _case("case_insensitive_sharp_s", r"(?i)straße", ["STRAßE", "straẞe", "ſtraße"], ["STRASSE"]),
    _case("case_insensitive_kelvin", r"(?i)[j-l]", ["K", "\u212a", "j"], ["m", "M"]),
    _case("case_insensitive_greek", r"(?i)ς", ["σ", "Σ", "ς"], ["s"]),
    _case("case_insensitive_ascii", r"(?ai)k+s", ["KkS"], ["\u212as", "k\u017f"]),
    _case("not_ascii", r"[^\x00-\x7f]+", ["é", "日😀"], ["a", "éa"]),
    _case("four_widths", r"aé日😀", ["aé日😀"], ["aé日", "aé日😁"]),
    _case("noncharacters", r"[\ufffe-\uffff\U0010ffff]", ["\ufffe", "\U0010ffff"], ["\ufffd"]),
    _case("around_surrogates", r"[\ud7ff-\ue000]", ["\ud7ff", "\ue000"], ["\ud7fe", "\ue001"]),
    _case("latin1_control", r"[\x80-\x9f]?x", ["x", "\x85x"], ["\xa0x"]),
    _case("named_characters", r"\N{SNOWMAN}|\N{GREEK SMALL LETTER ALPHA}", ["☃", "α"], ["a"]),
    _case("combining", r"(?:[a-z][\u0300-\u036f]?)+", ["cafe\u0301", "ab"], ["\u0301", "é"]),
)

DIALOGUES = (
    _case(
        "speaker_line",
        r"(?:User|Assistant): [^\n]+\n",
        ["User: hi\n", "Assistant: yes?\n"],
        ["System: x\n", "User: \n"],
    ),
    _case(
        "dialogue",
        r"(?:Q: [^\n]{1,40}\nA: [^\n]{1,40}\n){1,3}",
        ["Q: why?\nA: because\n"],
        ["Q: why?\n", "A: x\nQ: y\n"],
    ),
    _case(
        "react_step",
        r"Thought: [^\n]+\nAction: (?:search|finish)\[[^\]\n]*\]",
        ["Thought: t\nAction: finish[42]"],
        ["Action: search[]"],
    ),
    _case(
        "chain_of_thought",
        r"(?:Step [1-9]: [^\n]+\n){1,5}Answer: -?\d+",
        ["Step 1: add\nAnswer: 4"],
        ["Answer: 4", "Step 0: x\nAnswer: 1"],
    ),
    _case("boxed_answer", r"The answer is \\boxed\{-?\d+\}\.", ["The answer is \\boxed{42}."], ["The answer is 42."]),
    _case(
        "xml_tags",
        r"<answer>[^<>]*</answer>",
        ["<answer>42</answer>", "<answer></answer>"],
        ["<answer>", "<answer><</answer>"],
    ),
    _case(
        "think_then_answer",
        r"<think>\n(?:[^<]|<[^/])*</think>\n[^\n]+",
        ["<think>\nhm < 3\n</think>\nyes"],
        ["<think></think>"],
    ),
    _case(
        "function_call", r"[a-z_]+\((?:[a-z]+=\d+(?:, [a-z]+=\d+)*)?\)", ["f()", "add(a=1, b=2)"], ["f(1)", "f(a=1,)"]
    ),
    _case(
        "tool_json",
        r'\{"name": "(?:add|mul)", "args": \[\d+, \d+\]\}',
        ['{"name": "add", "args": [1, 2]}'],
        ['{"name": "sub"}'],
    ),
    _case(
        "play_script", r"(?:[A-Z]+: [^\n:]+\n)+", ["HAMLET: To be\nOPHELIA: My lord\n"], ["Hamlet: x\n", "HAMLET:\n"]
    ),
    _case("rating_line", r"Rating: [1-5](?: \([a-z ]+\))?", ["Rating: 4", "Rating: 5 (very good)"], ["Rating: 6"]),
    _case("verdict", r"Verdict: (?:SUPPORTED|REFUTED|NOT ENOUGH INFO)", ["Verdict: REFUTED"], ["Verdict: UNKNOWN"]),
    _case("translation_pair", r"en: [^\n]+\nde: [^\n]+", ["en: dog\nde: Hund"], ["de: Hund\nen: dog"]),
)

CHARACTER_RECORD = (
    r'\{\n    "name": "[A-Za-z0-9 ]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n    "age": [0-9]{1,2},\n'
    r'    "wand": \{\n        "wood": "[A-Za-z ]{1,16}",\n        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \}\n\}'
)
RECORDS = (
    _case(
        "character_record",
        CHARACTER_RECORD,
        [
            '{\n    "name": "Harry Potter",\n    "house": "Gryffindor",\n    "blood status": "Half-blood",\n    "age": 17,\n'
            '    "wand": {\n        "wood": "Holly",\n        "length": 11.0\n    }\n}'
        ],
        ["{}", '{\n    "name": ""'],
    ),
    _case(
        "json_flat",
        r'\{"a": (?:true|false|null|-?\d{1,5}), "b": "[^"\\\n]{0,20}"\}',
        ['{"a": -5, "b": "x"}'],
        ['{"a": 1}'],
    ),
    _case("json_int_array", r"\[(?:-?\d{1,6}(?:, -?\d{1,6}){0,7})?\]", ["[]", "[1, -2]"], ["[1,2]", "[,]"]),
    _case("json_string_array", r'\[("[a-z]+")(, "[a-z]+")*\]', ['["a"]', '["a", "b"]'], ["[]", '["a" "b"]']),
    _case(
        "csv_row",
        r"(?:[^,\"\n]*|\"(?:[^\"]|\"\")*\")(?:,(?:[^,\"\n]*|\"(?:[^\"]|\"\")*\")){2}",
        ["a,b,c", '"x,""y""",,'],
        ["a,b", 'a,"b,c'],
    ),
    _case("key_value", r"[a-z_]+ ?= ?(?:\d+|\"[^\"\n]*\"|true|false)", ["a=1", 'name = "x y"'], ["a=", "a=yes"]),
    _case("yaml_item", r"- [a-z]+: \w+\n(?:  [a-z]+: \w+\n)*", ["- a: b\n", "- a: b\n  c: d\n"], ["- a\n", "a: b\n"]),
    _case("ini_section", r"\[\w+\]\n(?:\w+=[^\n]*\n)*", ["[a]\n", "[a]\nx=1\ny=\n"], ["[a]", "x=1\n"]),
    _case(
        "log_line",
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:DEBUG|INFO|WARNING|ERROR) [\w.]+: .*",
        ["2026-11-30 07:52:30,123 INFO a.b: ok"],
        ["INFO"],
    ),
    _case(
        "syslog",
        r"<\d{1,3}>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+: .+",
        ["<34>Oct  1 22:14:15 host su: failed"],
        ["<34>Oct"],
    ),
    _case(
        "access_log",
        r'\d+(?:\.\d+){3} - - \[[^\]]+\] "[A-Z]+ \S+ HTTP/\d\.\d" \d{3} \d+',
        ['1.2.3.4 - - [x] "GET / HTTP/1.1" 200 5'],
        ["1.2.3.4"],
    ),
    _case("fasta", r">[^\n]+\n(?:[ACGT]{1,60}\n)+", [">seq1\nACGT\nAC\n"], [">x\n", "ACGT\n"]),
    _case(
        "chess_move",
        r"(?:[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](?:=[QRBN])?|O-O(?:-O)?)[+#]?",
        ["e4", "Nf3", "O-O-O#", "exd8=Q+"],
        ["Z9", "O-"],
    ),
    _case(
        "chess_game",
        r"1\. e4 (?:e5|c5)(?: \d\. [a-h][1-8] [a-h][1-8]){0,3}",
        ["1. e4 c5", "1. e4 e5 2. d4 d5"],
        ["1. d4"],
    ),
    _case("molecule", r"(?:[A-Z][a-z]?\d*)+", ["H2O", "NaCl", "C6H12O6"], ["h2o", "2H"]),
    _case("dna_codons", r"ATG(?:[ACGT]{3}){0,20}(?:TAA|TAG|TGA)", ["ATGTAA", "ATGCCCTGA"], ["ATGCCTGA", "TAA"]),
    _case(
        "recipe_line",
        r"(?:\d+(?:/\d+)?|½|¼) (?:cups?|tbsp|tsp|g) [a-z ]{1,30}",
        ["½ cup sugar", "2 cups flour"],
        ["cup sugar"],
    ),
    _case(
        "invoice_line",
        r"\d{1,3} x [A-Za-z ]{1,20} @ \d+\.\d{2} = \d+\.\d{2}",
        ["2 x Blue pen @ 1.50 = 3.00"],
        ["2 x pen"],
    ),
)

MARKUP = (
    _case("markdown_heading", r"#{1,6} [^\n#]+", ["# Title", "### Sub"], ["####### x", "#x"]),
    _case("markdown_list", r"(?:- [^\n]{1,60}\n){1,5}", ["- a\n- b\n"], ["* a\n", "- a"]),
    _case("numbered_list", r"1\. [^\n]+\n2\. [^\n]+\n3\. [^\n]+", ["1. a\n2. b\n3. c"], ["1. a\n3. b\n2. c"]),
    _case(
        "markdown_table",
        r"\|(?: [^|\n]{1,15} \|){2}\n\|(?: ?-{3,} ?\|){2}\n(?:\|(?: [^|\n]{1,15} \|){2}\n){1,3}",
        ["| a | b |\n|---|---|\n| 1 | 2 |\n"],
        ["| a |\n"],
    ),
    _case("markdown_link", r"\[[^\]\n]+\]\([^)\s]+\)", ["[x](http://y)"], ["[](y)", "[x] (y)"]),
    _case("code_block", r"```[a-z]*\n(?:[^`\n]*\n)*```", ["```python\nx = 1\n```", "```\n```"], ["```", "``x``"]),
    _case(
        "html_tag",
        r"<([a-z]+[1-6]?)(?: [a-z]+=\"[^\"]*\")*/?>",
        ["<br/>", '<a href="x">', "<h1>"],
        ["<>", "<a href=x>"],
    ),
    _case("bold", r"\*\*[^*\n]+\*\*", ["**x y**"], ["*x*", "****"]),
    _case("latex_inline", r"\$[^$\n]+\$", ["$x^2$"], ["$$", "x"]),
    _case("checkbox", r"- \[[ x]\] .+", ["- [x] done", "- [ ] to do"], ["- [y] a", "- [] a"]),
    _case("xml_pair", r"<(?:a>[^<]*</a|b>[^<]*</b)>", ["<a>x</a>", "<b></b>"], ["<a>x</b>"]),
    _case("html_entity", r"&(?:[a-z]+|#\d{1,6}|#x[0-9a-f]{1,5});", ["&amp;", "&#65;", "&#x1f600;"], ["&;", "&amp"]),
)

CODE = (
    _case(
        "assignment",
        r"[a-z_]\w* = (?:-?\d+|'[^'\n]*'|\[\]|None)",
        ["x = 5", "name = 'a'", "a = None"],
        ["x=5", "5 = x"],
    ),
    _case(
        "python_def",
        r"def [a-z_]+\((?:[a-z]+(?:, [a-z]+)*)?\)(?: -> [a-z]+)?:",
        ["def f():", "def g(a, b) -> int:"],
        ["def f()"],
    ),
    _case(
        "import_line",
        r"(?:from [a-z_.]+ )?import [a-z_]+(?: as [a-z_]+)?",
        ["import os", "from a.b import c as d"],
        ["from a"],
    ),
    _case(
        "sql_select",
        r"SELECT (?:\*|\w+(?:, \w+)*) FROM \w+(?: WHERE \w+ (?:=|<|>) \d+)?(?: LIMIT \d+)?;",
        ["SELECT * FROM t;", "SELECT a, b FROM t WHERE a = 1 LIMIT 5;"],
        ["SELECT FROM t;"],
    ),
    _case("arithmetic", r"\d+(?: [+*/-] \d+){1,4}", ["1 + 2", "3 * 4 - 5"], ["1+2", "1 +"]),
    _case("comparison", r"[a-z]+ (?:==|!=|<=?|>=?) \d+", ["a == 1", "b <= 2"], ["a = 1", "a =< 1"]),
    _case("c_comment", r"/\*(?:[^*]|\*+[^*/])*\*+/", ["/**/", "/* a * b */"], ["/*", "/* */ */"]),
    _case("shell_option", r"--?[a-z][a-z-]*(?:=\S+)?", ["-v", "--max-len=5"], ["v", "---x"]),
    _case("regex_chars", r"[\]\[\\^\-.$*+?(){}|/]+", ["]", "\\^-", "[[", "(|)"], ["a", ""]),
    _case("class_edge_cases", r"[]^-]{3}", ["]^-", "---"], ["abc", "]^"]),
    _case("negated_bracket", r"[^]]*\]", ["a]", "]"], ["a", "]]"]),
    _case("caret_inside", r"[a^]+", ["a^", "^^"], ["b"]),
    _case("literal_braces", r"a{,}b|x{y}|{}", ["b", "aab", "x{y}", "{}"], ["a{,}b"]),
    _case("octal_and_hex", r"\101\x42\u0043\U00000044\0", ["ABCD\0"], ["ABCD"]),
    _case("escapes", r"\a\f\t\v\r\n\\", ["\a\f\t\v\r\n\\"], ["\\a"]),
    _case("nested_set_characters", r"[a&\&b]+|[x\[y]+", ["a&b", "x[y"], ["ax"]),
    _case("slashes", r"a/b\/c", ["a/b/c"], ["a/b\\/c"]),
    _case("quotes", "[\"'`]+", ["\"'`", "'"], [""]),
)

FORMS = (
    _case("verbose", "(?x) \\d+  # number\n [ ]? (?: kg | lb )  # unit", ["5 kg", "10lb"], ["5  kg", "5 # number"]),
    _case("anchored", r"^\d+$", ["12"], ["12\n", "a"]),
    _case("anchored_strict", r"\A[ab]+\Z", ["abba"], ["abba\n", ""]),
    _case("anchored_branches", r"^a+$|^b+$", ["aa", "b"], ["ab", ""]),
    _case("multiline_at_ends", r"(?m)^x\ny$", ["x\ny"], ["x\ny\n", "x"]),
    _case("named_groups", r"(?P<year>\d{4})-(?P<month>\d\d)", ["2024-05"], ["2024-5"]),
    _case("scoped_flags", r"a(?i:b)c(?s:.)(?-i:d)", ["aBc\nd", "abcxd"], ["Abcxd", "abcxD"]),
    _case("comment", r"a(?#not b)c", ["ac"], ["abc"]),
    _case("empty", r"", [""], ["a", "\n"]),
    _case("empty_group", r"a()b(?:)c", ["abc"], ["a()b"]),
    _case("nested_optional", r"a(?:b(?:c(?:d)?)?)?", ["a", "abc", "abcd"], ["abd", "bcd"]),
    _case("nested_stars", r"(?:a*b*)*c", ["c", "aabbaac"], ["ab", "ca"]),
    _case("empty_loop", r"(?:|a|b??)+c", ["c", "abac"], ["", "d"]),
    _case("counted_nested", r"(?:(?:ab){2}){1,2}", ["abab", "abababab"], ["ab", "ababab"]),
    _case("zero_times", r"a(?:b){0}c{0,0}d", ["ad"], ["abd", "acd"]),
    _case("at_least", r"a{3,}", ["aaa", "a" * 20], ["aa"]),
    _case("at_most", r"a{0,3}b", ["b", "aaab"], ["aaaab", "a"]),
    _case("overlapping", r"(?:ab|a)(?:bc|c)", ["abc", "abbc", "ac"], ["ab", "abcc"]),
    _case("suffix_choice", r"(?:a|ab)(?:c|bcd)?", ["a", "abc", "abcd", "abbcd"], ["abb", "bcd"]),
    _case("last_is_a", r"(?:a|b)*a(?:a|b){4}", ["abbbb", "bbabaaa"], ["bbbbb", "aaaa"]),
    _case("common_prefix", r"foobar|foobaz|foo", ["foo", "foobaz"], ["fooba", "bar"]),
    _case("same_twice", r"a|a|a", ["a"], ["aa"]),
    _case("no_b_after_a", r"[^a]*(?:a+[^ab][^a]*)*a*", ["bbb", "acb", "aa"], ["ab", "cab"]),
    _case("alternating", r"(?:ab)*a?|(?:ba)*b?", ["", "abab", "bab"], ["aa", "abb"]),
)

PATTERNS: tuple[PatternCase, ...] = (
    *DATES_AND_TIMES,
    *NUMBERS,
    *IDENTIFIERS,
    *INTERNET,
    *PHONES,
    *PEOPLE_AND_PLACES,
    *CHOICES,
    *TEXTS,
    *UNICODE,
    *DIALOGUES,
    *RECORDS,
    *MARKUP,
    *CODE,
    *FORMS,
)
